"""What the stage clock says, as gauges of the scheduler's heartbeat: for `status`, `top` and Prometheus.

Role: the only place where estimates leave the scheduler; decisions are taken on the snapshot itself.
Invariants: what is not known any more has no gauge.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumers.scheduler.snapshot import Snapshot
from pipeline.metrics import Metrics
from topics.catalog import PROMPTS, SAMPLES

Labels = tuple[tuple[str, str], ...]


class Pace:
    """Call `tell` with each snapshot.

    Args:
        every_s: least time between two times that gauges are set; heartbeats carry no more than one anyway.
    """

    def __init__(self, metrics: Metrics, *, every_s: float) -> None:
        self._metrics = metrics
        self._every_s = every_s
        self._due_s = float("-inf")
        self._told: set[tuple[str, Labels]] = set()

    def tell(self, snapshot: Snapshot) -> None:
        """Set the gauges when it is time."""
        if snapshot.now_s < self._due_s:
            return
        self._due_s = snapshot.now_s + self._every_s
        values = _values(snapshot)
        for name, labels in self._told - values.keys():
            self._metrics.absent(name, **dict(labels))
        for (name, labels), value in values.items():
            self._metrics.gauge(name, value, **dict(labels))
        self._told = set(values)


def _values(snapshot: Snapshot) -> dict[tuple[str, Labels], float]:
    found: dict[tuple[str, Labels], float] = {}
    for (stage, name), time in snapshot.times.items():
        found["phase_typical_s", _labels({"of": stage, "phase": name})] = time.typical_s
    for (owner, name), share in snapshot.shares.items():
        found["phase_share", _labels({"of": owner, "phase": name})] = share
    for (owner, counter), rate in snapshot.rates.items():
        found["flow_per_s", _labels({"of": owner, "counter": plain_name(counter)})] = rate
    for key, lag in snapshot.lag.items():
        if lag is not None and (per_step := _records_per_step(snapshot, topic=key[1])) is not None:
            found["lag_versions", _labels({"group": key[0], "topic": key[1]})] = lag / per_step
        if (seconds := snapshot.lag_s(key)) is not None:
            found["lag_s", _labels({"group": key[0], "topic": key[1]})] = seconds
    known = [steps for steps in snapshot.versions_behind().values() if steps is not None]
    if known:
        found["versions_behind_max", ()] = max(known)
    if (late := snapshot.publish_lag.versions) is not None:
        found["publish_lag_versions", ()] = late
    return found


def _records_per_step(snapshot: Snapshot, *, topic: str) -> int | None:
    """Records of a topic that one step uses up; None: they are not used up by steps."""
    groups = snapshot.groups_per_step
    return {PROMPTS.name: groups, SAMPLES.name: groups * snapshot.group_size}.get(topic)


def plain_name(counter: str) -> str:
    """`records_read samples` for `records_read{topic=samples}`."""
    name, _, labels = counter.partition("{")
    return " ".join([name, *(label.partition("=")[2] for label in labels.removesuffix("}").split(",") if label)])


def _labels(values: Mapping[str, str]) -> Labels:
    return tuple(sorted(values.items()))
