"""The stage clock: how long each phase takes, and how fast records flow.

Role: running estimates from the events of all processes, for policies and for people.
Data in: events, with the local monotonic time at which they were read. Data out: `PhaseTime` per (stage, phase), rates
per (owner, counter), where the owner is a stage, or the consumer group of a reward.
Invariants: forward and backward count per step, other phases per span; estimates are medians, so one stall among many
phases moves none of them; a rate is of what was seen to be counted, so a process that was first heard with a high count
adds nothing until it counts on, and one that began anew subtracts nothing; times are spans that the sender measured, or
of the local clock (promise 13).
Failure: none; a span or count that is no finite number of 0 or more is left out, and so is one of more names, or longer
ones, than processes of ours have: anyone may write events, and each name costs memory and room in every heartbeat.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

from schemas.records import StageEvent

NUM_SPANS = 64  # of one phase, over all processes of the stage
STEP = ("learner", "step")  # from one step to the next, whatever the time was spent on
FORWARD_BACKWARD = ("learner", "forward_backward")  # what ranks divide among them
COUNTERS = ("records_read{", "records_written{", "groups_closed{", "tokens_generated", "samples_scored{")
MOST_NAMES = 256  # of phases, and of flows
MOST_CHARS = 512  # of one: a group id and a counter
_SPENT = "spent_s"
AWAY = ("learner", "away")  # from the good-bye of a learner to the first work of the next one, which we measure
_WORKING = ("reading", "waiting_for_data", "forward_backward")
STARTING = "starting"  # from the start of a process to its first work
_LEARNER = "learner"
_OUTSIDE = ("reading", "waiting_for_data")  # between the work of one step and that of the next
PhaseKey = tuple[str, str]  # (stage, phase)
FlowKey = tuple[str, str]  # (owner, counter with its labels)


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """How long a phase takes."""

    typical_s: float  # median
    high_s: float  # 90th percentile
    num_spans: int


class WorkPerStep:
    """Forward and backward of a whole step: it comes in parts when the step before is written in the middle of it."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}  # instance -> seconds of the step that goes on

    def add(self, event: StageEvent) -> float | None:
        """Take one event, those of an instance in their order; the seconds of a step when it tells of its end."""
        if event.stage != _LEARNER or event.kind not in ("phase_began", "phase_ended"):
            return None
        if event.name in _OUTSIDE:
            return self._parts.pop(event.instance, None)
        if (event.stage, event.name) == FORWARD_BACKWARD and event.kind == "phase_ended":
            spent_s = event.gauges.get(_SPENT, math.nan)
            if math.isfinite(spent_s) and spent_s >= 0:
                self._parts[event.instance] = self._parts.get(event.instance, 0.0) + spent_s
        return None

    def forget(self, instance: str) -> None:
        """The process is gone, and with it the step that it was at."""
        self._parts.pop(instance, None)


class PhaseTimes:
    """Spans of phases, the last ones of each. Those of a learner are forgotten when its processes are new: it may have
    another number of ranks now."""

    def __init__(self) -> None:
        self._ranks: set[str] = set()  # instances of the learner
        self._left_s: float | None = None  # local time at which the last one said good-bye; None: it is there
        self._spans: dict[PhaseKey, deque[float]] = {}
        self._times: dict[PhaseKey, PhaseTime] = {}  # of spans that did not change since
        self._stepped: dict[str, tuple[float, float]] = {}  # instance -> (sender's time of its last step, step)
        self._work = WorkPerStep()

    def add(self, event: StageEvent, *, now_s: float) -> None:
        """Take one event, read at local time `now_s`; those of an instance in their order."""
        if event.stage == _LEARNER:
            self._add_absence(event, now_s=now_s)
        if event.stage == _LEARNER and event.instance not in self._ranks:
            self._ranks.add(event.instance)
            self._begin_anew(_LEARNER)
        work_s = self._work.add(event)
        if work_s is not None:
            self._take(FORWARD_BACKWARD, work_s)
        if event.kind == "phase_ended" and (event.stage, event.name) != FORWARD_BACKWARD:
            self._take((event.stage, event.name), event.gauges.get(_SPENT, math.nan))
        elif event.kind == "notice" and (event.stage, event.name) == STEP:
            step, at_s = event.gauges.get("step", math.nan), event.monotonic_s
            before = self._stepped.get(event.instance)
            self._stepped[event.instance] = (at_s, step)
            if before is not None and step == before[1] + 1:
                self._take(STEP, at_s - before[0])

    def forget(self, instance: str) -> None:
        """The process is gone."""
        self._stepped.pop(instance, None)
        self._work.forget(instance)
        self._ranks.discard(instance)

    def times(self) -> dict[PhaseKey, PhaseTime]:
        """Phases that ended at least once."""
        for key in self._spans.keys() - self._times.keys():
            self._times[key] = _time_of(self._spans[key])
        return dict(self._times)

    def _add_absence(self, event: StageEvent, *, now_s: float) -> None:
        if event.kind == "notice" and event.name == "stopped":
            self._left_s = now_s
        elif self._left_s is not None and event.kind == "phase_began" and event.name in _WORKING:
            self._take(AWAY, now_s - self._left_s)
            self._left_s = None

    def _begin_anew(self, stage: str) -> None:
        """Forget how long its phases took, but for the start."""
        for key in [key for key in self._spans if key[0] == stage and key[1] != STARTING and key != AWAY]:
            del self._spans[key]
            self._times.pop(key, None)

    def _take(self, key: PhaseKey, span_s: float) -> None:
        if math.isfinite(span_s) and span_s >= 0 and is_taken(key, self._spans):
            self._spans.setdefault(key, deque(maxlen=NUM_SPANS)).append(span_s)
            self._times.pop(key, None)


class Rates:
    """Counters of many processes as rates per second.

    Args:
        window_s: a rate is over this long, or over the time since listening began where that is less.
        began_s: local time at which listening began.
    """

    def __init__(self, *, window_s: float, began_s: float) -> None:
        self._window_s = window_s
        self._began_s = began_s
        self._last: dict[str, Mapping[str, float]] = {}  # instance -> its counters
        self._added: deque[tuple[float, FlowKey, float]] = deque()
        self._seen: set[FlowKey] = set()

    def add(self, instance: str, owner: str, *, gauges: Mapping[str, float], now_s: float) -> None:
        """Take the counters of one heartbeat."""
        counters = {name: value for name, value in gauges.items() if name.startswith(COUNTERS) and value >= 0}
        before = self._last.get(instance)
        self._last[instance] = counters
        if before is None:
            return
        for name, value in counters.items():
            if not is_taken((owner, name), self._seen):
                continue
            self._seen.add((owner, name))
            more = value - before.get(name, 0.0)
            if more > 0:
                self._added.append((now_s, (owner, name), more))

    def forget(self, instance: str) -> None:
        """The process is gone; what it counted stays counted."""
        self._last.pop(instance, None)

    def per_s(self, now_s: float, *, part: float = 1.0) -> dict[FlowKey, float]:
        """Rate of each counter that was seen twice; 0 of one that stood still for the whole window.

        Args:
            part: over this share of the window only, its end.
        """
        while self._added and self._added[0][0] < now_s - self._window_s:
            self._added.popleft()
        over_s = min(self._window_s * part, now_s - self._began_s)
        if over_s <= 0:
            return {}
        rates = dict.fromkeys(self._seen, 0.0)
        for at_s, key, more in reversed(self._added):
            if at_s < now_s - over_s:
                break
            rates[key] += more / over_s
        return rates


def is_taken(key: tuple[str, str], known: Collection[tuple[str, str]]) -> bool:
    """Whether there is room for this name beside those known already."""
    return key in known or (len(known) < MOST_NAMES and len(key[0]) + len(key[1]) <= MOST_CHARS)


def _time_of(spans: deque[float]) -> PhaseTime:
    high_s = quantiles(spans, n=10, method="inclusive")[-1] if len(spans) > 1 else spans[0]
    return PhaseTime(typical_s=median(spans), high_s=high_s, num_spans=len(spans))
