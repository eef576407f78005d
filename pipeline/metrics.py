"""The metrics of a stage: those of `pipeline.metric_catalog`, exposed to Prometheus and carried in heartbeats.

Role: every wait, lag, age, drop and phase is counted here from the start.
Invariants: a metric exists in `METRICS` or cannot be used; labels have few values; names end in their unit.
Failure: an undeclared name is a `KeyError`, a wrong kind a `TypeError`, at the first use, in every test.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from pipeline.metric_catalog import GROUPS, METRICS, MetricSpec

__all__ = ["GROUPS", "METRICS", "MetricSpec", "Metrics"]
_BY_NAME = {spec.name: spec for spec in METRICS}


class Metrics:
    """The metrics of one process.

    Args:
        labels: further labels that all of them carry.
    """

    def __init__(self, *, run: str, stage: str, instance: str, labels: Mapping[str, str] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._common = {"run": run, "stage": stage, "instance": instance, **(labels or {})}
        self._live: dict[str, Counter | Gauge | Histogram] = {}

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        metric = self._metric(name)
        if not isinstance(metric, Counter):
            raise TypeError(f"{name} is not a counter")
        metric.labels(**self._common, **labels).inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        metric = self._metric(name)
        if not isinstance(metric, Gauge):
            raise TypeError(f"{name} is not a gauge")
        metric.labels(**self._common, **labels).set(value)

    def absent(self, name: str, **labels: str) -> None:
        """Take a gauge away: its value is unknown, which is not 0."""
        metric = self._metric(name)
        if not isinstance(metric, Gauge):
            raise TypeError(f"{name} is not a gauge")
        values = self._common | labels
        metric.remove(*(values[label] for label in (*self._common, *_BY_NAME[name].labels)))

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram; below 0 counts as 0 and as a clock skew (promise 13)."""
        metric = self._metric(name)
        if not isinstance(metric, Histogram):
            raise TypeError(f"{name} is not a histogram")
        if value < 0:
            self.count("clock_skews")
        metric.labels(**self._common, **labels).observe(max(0.0, value))

    def snapshot(self) -> dict[str, float]:
        """Counters and gauges, and sum and count of every histogram, by name and labels; goes into heartbeats."""
        values: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.endswith(("_created", "_bucket")):
                    continue
                own = [f"{key}={value}" for key, value in sample.labels.items() if key not in self._common]
                name = sample.name.removeprefix("rlweave_").removesuffix("_total")
                values[f"{name}{{{','.join(own)}}}" if own else name] = sample.value
        return values

    def expose(self, port: int, *, host: str = "127.0.0.1") -> int:
        """Serve the metrics over HTTP; returns the port."""
        server, _ = start_http_server(port, addr=host, registry=self.registry)
        return int(server.server_port)

    def _metric(self, name: str) -> Counter | Gauge | Histogram:
        if name not in self._live:
            spec = _BY_NAME[name]
            labels = [*self._common, *spec.labels]
            full = f"rlweave_{name}"
            if spec.kind == "counter":
                self._live[name] = Counter(full, spec.help, labels, registry=self.registry)
            elif spec.kind == "gauge":
                self._live[name] = Gauge(full, spec.help, labels, registry=self.registry)
            else:
                self._live[name] = Histogram(full, spec.help, labels, registry=self.registry, buckets=spec.buckets)
        return self._live[name]
