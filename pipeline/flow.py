"""Ages and hops: what producers and the learner tell in the same words.

Role: the shared half of how samples and weights are timed on their way.
Data in: ages in versions, a version on its way to an engine. Data out: metrics.
Invariants: a hop within one process is measured on its own clock; one between processes in Unix time, clamped at 0 and
counted as a skew (promise 13). A version that was there before this process began has no hops here.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.metrics import Metrics
from pipeline.traffic.classes import TrafficClass
from schemas.records import Manifest
from topics.clock import Clock


def tell_ages(metrics: Metrics, ages: Sequence[int], *, kind: str) -> None:
    """Mean and largest of some ages, in versions; absent without any."""
    if not ages:
        metrics.absent("age_mean_versions", kind=kind)
        metrics.absent("age_max_versions", kind=kind)
        return
    metrics.gauge("age_mean_versions", sum(ages) / len(ages), kind=kind)
    metrics.gauge("age_max_versions", max(ages), kind=kind)


class WeightHops:
    """The way of versions to one engine: seen on the log, fetched and verified, loaded."""

    def __init__(self, metrics: Metrics, *, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._fetched_s = clock.monotonic()

    def fetched(self, *, seen_s: float | None) -> None:
        """A version is whole and verified. `seen_s`: when its manifest was read; None: before this process began."""
        self._fetched_s = self._clock.monotonic()
        if seen_s is not None:
            self._metrics.observe("weight_hop_s", self._fetched_s - seen_s, hop="published_fetched")

    def serving(self, manifest: Manifest, *, seen_s: float | None) -> None:
        """It is loaded."""
        self._metrics.observe("weight_hop_s", self._clock.monotonic() - self._fetched_s, hop="fetched_serving")
        if seen_s is not None:
            whole_ms = self._clock.unix_ms() - manifest.created_unix_ms
            self._metrics.observe("weight_hop_s", whole_ms / 1000, hop="trained_serving")


def count_received(metrics: Metrics, *, traffic: TrafficClass) -> Callable[[str, int], None]:
    """Counts bytes of a class that came in, by scope and number."""

    def count(scope: str, num_bytes: int) -> None:
        metrics.count("network_bytes", num_bytes, traffic=traffic, scope=scope)

    return count
