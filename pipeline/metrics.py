"""The metrics of a stage: those of `pipeline.metric_catalog`, exposed to Prometheus and carried in heartbeats.

Role: every wait, lag, age, drop and phase is counted here from the start.
Data in: counts, levels and observations, from any thread. Data out: the text format of Prometheus, or a plain mapping.
Invariants: a metric exists in `METRICS` or cannot be used; a count costs a dictionary access, as stages count per
sample; histograms keep whole buckets, so quantiles of several processes add up.
Failure: an undeclared name is a `KeyError`, a wrong kind a `TypeError`, wrong labels a `ValueError`, at the first use,
in every test.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from socketserver import BaseRequestHandler, StreamRequestHandler
from typing import cast

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.metric_catalog import GROUPS, METRICS, MetricSpec
from schemas.errors import SettingsError

__all__ = ["GROUPS", "METRICS", "MetricSpec", "Metrics"]
_BY_NAME = {spec.name: spec for spec in METRICS}
NUM_PORTS, _LAST_PORT = 64, 65535  # processes of one host that begin at one port
_REQUEST_S = 10.0  # for a client to say what it wants, and to take it
_NOT_TOLD = ("phase_s",)  # each phase has events of its own, and heartbeats carry `phase_time_s`
_Labels = tuple[str, ...]  # values, in the order of the spec


class _Observed:
    """A histogram's state for one set of label values."""

    __slots__ = ("counts", "sum")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * (num_buckets + 1)  # the last one: above every edge
        self.sum = 0.0


class Metrics:
    """The metrics of one process. Safe to use from several threads.

    Args:
        labels: further labels that all of them carry.
    """

    def __init__(self, *, run: str, stage: str, instance: str, labels: Mapping[str, str] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._common = {"run": run, "stage": stage, "instance": instance, **(labels or {})}
        self._lock = threading.Lock()
        self._values: dict[str, dict[_Labels, float]] = {}
        self._observed: dict[str, dict[_Labels, _Observed]] = {}
        self.registry.register(_Exposed(self))

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        key = _key(name, labels, kind="counter")
        if amount < 0:
            raise ValueError(f"{name} is a counter and cannot go down by {-amount}")
        with self._lock:
            values = self._values.setdefault(name, {})
            values[key] = values.get(key, 0.0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        key = _key(name, labels, kind="gauge")
        with self._lock:
            self._values.setdefault(name, {})[key] = float(value)

    def absent(self, name: str, **labels: str) -> None:
        """Take a gauge away: its value is unknown, which is not 0."""
        key = _key(name, labels, kind="gauge")
        with self._lock:
            self._values.get(name, {}).pop(key, None)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram; below 0 counts as 0 and as a clock skew (promise 13)."""
        self.observe_all(name, (value,), **labels)

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None:
        """The same for several."""
        key = _key(name, labels, kind="histogram")
        edges = _BY_NAME[name].buckets
        num_skewed = 0
        with self._lock:
            by_labels = self._observed.setdefault(name, {})
            observed = by_labels.get(key)
            if observed is None:
                observed = by_labels[key] = _Observed(len(edges))
            for value in values:
                if value < 0:
                    num_skewed += 1
                observed.counts[bisect_left(edges, max(0.0, value))] += 1
                observed.sum += max(0.0, value)
        if num_skewed:
            self.count("clock_skews", num_skewed)

    def snapshot(self) -> dict[str, float]:
        """Counters and gauges, and sum and count of every histogram, by name and labels; goes into heartbeats."""
        found: dict[str, float] = {}
        with self._lock:
            for name, values in self._values.items():
                for key, value in values.items():
                    found[name + _shown(name, key)] = value
            for name, by_labels in self._observed.items():
                if name in _NOT_TOLD:
                    continue
                for key, observed in by_labels.items():
                    shown = _shown(name, key)
                    found[f"{name}_sum{shown}"] = observed.sum
                    found[f"{name}_count{shown}"] = float(sum(observed.counts))
        return found

    def families(self) -> Iterator[Metric]:
        """What there is, as Prometheus has it."""
        with self._lock:
            values = {name: dict(each) for name, each in self._values.items()}
            observed = {
                name: {key: (list(one.counts), one.sum) for key, one in each.items()}
                for name, each in self._observed.items()
            }
        common = tuple(self._common.values())
        for name, by_labels in values.items():
            family = self._family(_BY_NAME[name])
            for key, value in by_labels.items():
                family.add_metric([*common, *key], value)
            yield family
        for name, states in observed.items():
            yield self._histogram(_BY_NAME[name], states)

    def expose(self, port: int, *, host: str = "127.0.0.1") -> int:
        """Serve the metrics over HTTP; returns the port: `port`, or the next one above it that is free.

        Raises:
            SettingsError: none is, or the host is not an address of this machine.
        """
        last = port if port == 0 else min(port + NUM_PORTS - 1, _LAST_PORT)
        why = ""
        for number in range(port, last + 1):
            try:
                server, _ = start_http_server(number, addr=host, registry=self.registry)
            except OSError as error:
                why = str(error)
                if (
                    error.errno != errno.EADDRINUSE
                ):  # of the host, not of the port; to ask for its name may take seconds
                    break
                continue
            server.RequestHandlerClass = _patient(server.RequestHandlerClass)
            return int(server.server_port)
        raise SettingsError(
            f"no metrics can be served at {host}, ports {port} to {last}: {why}",
            hint="set run.metrics_port to 0 for any free port, and run.metrics_host to an address of this machine",
        )

    def _family(self, spec: MetricSpec) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        return kind(f"rlweave_{spec.name}", spec.help, labels=[*self._common, *spec.labels])

    def _histogram(self, spec: MetricSpec, states: Mapping[_Labels, tuple[list[int], float]]) -> HistogramMetricFamily:
        labels = [*self._common, *spec.labels]
        family = HistogramMetricFamily(f"rlweave_{spec.name}", spec.help, labels=labels)
        edges = [*map(repr, spec.buckets), "+Inf"]
        for key, (counts, total) in states.items():
            buckets = list(zip(edges, map(float, accumulate(counts)), strict=True))
            family.add_metric([*self._common.values(), *key], buckets, total)
        return family


def _patient(handler: Callable[..., BaseRequestHandler]) -> Callable[..., BaseRequestHandler]:
    """The same handler with a limit: a client that says nothing does not keep its thread for ever."""
    return type("Handler", (cast("type[StreamRequestHandler]", handler),), {"timeout": _REQUEST_S})


class _Exposed(Collector):
    """What the registry asks at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def _key(name: str, labels: Mapping[str, str], *, kind: str) -> _Labels:
    spec = _BY_NAME[name]
    if spec.kind != kind:
        raise TypeError(f"{name} is a {spec.kind}, not a {kind}")
    try:
        key = tuple([labels[label] for label in spec.labels])
    except KeyError:
        key = ()
    if len(key) != len(spec.labels) or len(labels) != len(spec.labels):
        raise ValueError(f"{name} has the labels {spec.labels}, not {tuple(labels)}")
    return key


def _shown(name: str, key: _Labels) -> str:
    labels = _BY_NAME[name].labels
    return f"{{{','.join(f'{label}={value}' for label, value in zip(labels, key, strict=True))}}}" if labels else ""
