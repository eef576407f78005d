"""What passes between the stages, and what waits between them.

Data in: the last words of the processes; the scheduler's measures of lag, with their times. Data out: `LagPicture`s,
`FlowPicture`s.
Invariants: unknown is None, never 0; lag is what the scheduler measured (`topics.lag`); growth is over the last
`GROWTH_MS` at most.
Failure: none; a gauge of another form is passed over.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ops.live.crew import at_work, gauge, largest, rate, rewards_of
from ops.live.picture import FlowPicture, LagPicture, ProcessPicture
from topics.catalog import PROMPTS, SAMPLES, rollout_group

GROWTH_MS = 30_000
MOST_LAGS = 64
_LAG = re.compile(r"lag_records\{group=([^,{}]+),topic=([^,{}]+)\}\Z")
_Key = tuple[str, str]  # (consumer group, topic)


class LagHistory:
    """How lag went lately. Call `add` with each heartbeat of the scheduler."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._seen: dict[_Key, deque[tuple[int, float]]] = {}
        self._gauges: Mapping[str, float] = {}

    def add(self, gauges: Mapping[str, float], *, at_ms: int) -> None:
        """Take the gauges of a heartbeat; what is unknown is not among them."""
        self._gauges = gauges
        for name, value in gauges.items():
            if (found := _LAG.match(name)) is None:
                continue
            key = (found[1], found[2])
            if key not in self._seen and len(self._seen) >= MOST_LAGS:
                continue
            points = self._seen.setdefault(key, deque(maxlen=256))
            points.append((at_ms, value))
            while points[0][0] < at_ms - GROWTH_MS:
                points.popleft()

    def pictures(
        self, *, steps_per_s: float | None, since_ms: int | None = 0, behind: float | None = None
    ) -> tuple[LagPicture, ...]:
        """Every group and topic, by name.

        Args:
            since_ms: growth is over what was measured since then; None: over nothing.
            behind: versions that an engine lacks; None: as the scheduler said.
        """
        found = []
        for group, topic in sorted(self._seen):
            label = f"{{group={group},topic={topic}}}"
            seconds = self._gauges.get(f"lag_s{label}")
            if group == rollout_group(self._run):
                versions = self._gauges.get("versions_behind_max") if behind is None else behind
            else:
                versions = None if seconds is None or steps_per_s is None else seconds * steps_per_s
            lag = LagPicture(
                group=group.removeprefix(f"rlweave.{self._run}."),
                topic=topic,
                records=self._gauges.get(f"lag_records{label}"),
                seconds=seconds,
                versions=versions,
                records_mean=_mean(self._seen[group, topic])[1],
                records_per_s=self._growth(group, topic=topic, since_ms=since_ms),
            )
            found.append(lag)
        return tuple(found)

    def _growth(self, group: str, *, topic: str, since_ms: int | None) -> float | None:
        points = self._seen[group, topic]
        return None if since_ms is None else growth_per_s([point for point in points if point[0] >= since_ms])


def growth_per_s(points: Sequence[tuple[int, float]] | deque[tuple[int, float]]) -> float | None:
    """How fast something grows: the mean of the second half less that of the first, over the time between them."""
    if len(points) < 4:
        return None
    half = len(points) // 2
    values = list(points)
    (first_ms, first), (last_ms, last) = _mean(values[:half]), _mean(values[half:])
    return (last - first) / (last_ms - first_ms) * 1000 if last_ms > first_ms else None


def flows(
    processes: Sequence[ProcessPicture],
    *,
    lag: Iterable[LagPicture],
    steps_per_s: float | None,
    behind: float | None = None,
) -> tuple[FlowPicture, ...]:
    """The pipeline, in the order in which it flows; `behind`: versions an engine lacks, None: as the engines said."""
    lags = {(each.group, each.topic): each for each in lag}
    learner, rollouts = at_work(processes, "learner"), at_work(processes, "rollout")
    found = [_prompts(processes, lags.get(("rollout", PROMPTS.name)))]
    for name, group in rewards_of(processes).items():
        lag_of = lags.get((group, SAMPLES.name))
        made = rate(rollouts, f"records_written{{topic={SAMPLES.name}}}")
        own = [each for each in at_work(processes, "reward") if each.name == f"reward {name}"]
        found.append(
            FlowPicture(
                source="rollout",
                target=f"reward {name}",
                what="samples",
                per_s=made,
                queued=None if lag_of is None else lag_of.records,
                queued_growth_per_s=None if lag_of is None else lag_of.records_per_s,
            )
        )
        said = rate(own, "records_written")
        found.append(FlowPicture(source=f"reward {name}", target="learner", what="rewards", per_s=said, queued=None))
    ready = gauge(learner, "ready_groups")
    lacked = largest(rollouts, "versions_behind") if behind is None else behind
    closed = rate(learner, "groups_closed")
    found.append(FlowPicture(source="rewards", target="learner", what="groups", per_s=closed, queued=ready))
    found.append(FlowPicture(source="learner", target="rollout", what="versions", per_s=steps_per_s, queued=lacked))
    return tuple(found)


def _prompts(processes: Sequence[ProcessPicture], lag: LagPicture | None) -> FlowPicture:
    """What lies unstarted: what rollouts have taken is theirs, though they have not committed it."""
    in_flight = gauge(at_work(processes, "rollout"), "prompts_in_flight")
    records = None if lag is None else lag.records
    queued = None if records is None else max(0.0, records - (0.0 if in_flight is None else in_flight))
    per_s = rate(at_work(processes, "prompts"), f"records_written{{topic={PROMPTS.name}}}")
    return FlowPicture(source="prompts", target="rollout", what="groups", per_s=per_s, queued=queued)


def _mean(points: Sequence[tuple[int, float]] | deque[tuple[int, float]]) -> tuple[float, float]:
    return sum(at for at, _ in points) / len(points), sum(value for _, value in points) / len(points)
