"""How many rollouts were best, as seen afterwards.

Role: what the course of a number is held against; the policy has no part in it.
Data in: events of a time in which the load was one. Data out: rollouts that would just have kept the learner busy.
Model: W is the learner's own time per step (forward and backward, staging, publishing), r the groups per second of a
producer while all its slots are in use: what was made over the slot-seconds that it took. B / (W r) are needed.
Failure: none; None when too little was heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from consumers.scheduler.stage_clock import WorkPerStep
from ops.bench.elastic.plan import GROUP_SIZE, GROUPS_PER_STEP
from schemas.records import StageEvent

_WORK = ("staging_weights", "publishing", "reading")  # besides forward and backward
_MADE = "records_written{topic=samples}"
_SLOTS = {"running_sequences", "free_slots"}


def needed_rollouts(events: Sequence[StageEvent]) -> float | None:
    """See the module."""
    work_s, each_s = _work_s(events), _groups_s(events)
    if not work_s or not each_s:
        return None
    return GROUPS_PER_STEP / work_s / each_s


def _work_s(events: Sequence[StageEvent]) -> float:
    spans: dict[str, list[float]] = {phase: [] for phase in _WORK}
    steps, work = list[float](), WorkPerStep()
    for event in events:
        work_s = work.add(event)
        if work_s is not None:
            steps.append(work_s)
        if event.stage == "learner" and event.kind == "phase_ended" and event.name in spans:
            spans[event.name].append(event.gauges["spent_s"])
    return sum(median(each) for each in (steps, *spans.values()) if each)


def _groups_s(events: Sequence[StageEvent]) -> float:
    """Of one producer whose slots are full."""
    before: dict[str, StageEvent] = {}
    made = used_s = 0.0
    for event in events:
        if event.stage != "rollout" or event.kind != "heartbeat" or not event.gauges.keys() >= _SLOTS:
            continue  # one that has only just begun has not said it yet
        last = before.get(event.instance)
        before[event.instance] = event
        if last is not None:
            made += event.gauges.get(_MADE, 0.0) - last.gauges.get(_MADE, 0.0)
            used_s += (_use(last) + _use(event)) / 2 * (event.monotonic_s - last.monotonic_s)
    return made / GROUP_SIZE / used_s if used_s else 0.0


def _use(event: StageEvent) -> float:
    """Share of the slots in use."""
    running, free = event.gauges["running_sequences"], event.gauges["free_slots"]
    return running / (running + free) if running + free else 0.0
