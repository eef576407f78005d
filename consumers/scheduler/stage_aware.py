"""The policy `stage_aware`: replicas from what the learner could train and what one replica makes.

Role: predicts instead of waiting for somebody to starve. Let W be the learner's own time per step (its step time
without the share of it that it waits for data) and r the groups per second of one rollout producer whose slots are
full. The learner takes B / W groups per second at most, so B / (W r) producers keep it busy. Rewards: samples made per
second over those that one replica scores while it scores.
Data in: medians and rates of the stage clock; what is not known leaves things as they are.
Invariants: see `consumers.scheduler.scaling`. More is asked for only when a producer's start costs less than a set
share of the time that is left, and rollouts only while there are prompts that no engine has taken up.
Failure: none.
"""

from __future__ import annotations

import math

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.policy import decide as decide_static
from consumers.scheduler.reactive import LEARNER_WAITS
from consumers.scheduler.scaling import Wish, scale
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Scalable, Snapshot
from consumers.scheduler.stage_clock import STEP
from topics.catalog import SAMPLES

SAMPLES_MADE = ("rollout", f"records_written{{topic={SAMPLES.name}}}")
_LEAST_USE = 0.05  # below, what a full producer would make is a guess


def decide(snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
    """What `static` decides, and scale commands."""
    return [*decide_static(snapshot, settings), *scale(snapshot, settings, wishes=wishes)]


def wishes(snapshot: Snapshot, target: Scalable, *, settings: SchedulerSettings) -> Wish | None:
    """See the module."""
    needed = _rollouts(snapshot) if target.target == "rollout" else _replicas(snapshot, group=target.group)
    if needed is None or not math.isfinite(needed):
        return None
    now, slack = snapshot.replicas_wanted(target), settings.scale_slack
    reason, assumed = f"{needed:.2f} would do", {"needed": f"{needed:.2f}"}
    if needed > now * (1 + slack):
        if not _pays(snapshot, stage=target.stage, settings=settings):
            return None
        if target.target == "rollout" and not snapshot.has_unstarted_prompts():
            return None
        return Wish(replicas=math.ceil(needed * (1 - slack)), reason=reason, assumed=assumed)
    if needed < (now - 1) * (1 - slack):
        return Wish(replicas=max(1, math.ceil(needed)), reason=reason, assumed=assumed)
    return None


def _rollouts(snapshot: Snapshot) -> float | None:
    """Producers, their slots full, that keep the learner busy."""
    step, made, use = snapshot.times.get(STEP), snapshot.rates.get(SAMPLES_MADE), snapshot.slot_use
    num_heard = snapshot.num_heard("rollout")
    if step is None or made is None or use is None or use < _LEAST_USE or not num_heard:
        return None
    work_s = step.typical_s * (1 - snapshot.shares.get(LEARNER_WAITS, 0.0))
    each_s = made / snapshot.group_size / num_heard / use
    if work_s <= 0 or each_s <= 0:
        return None
    return snapshot.groups_per_step / work_s / each_s


def _replicas(snapshot: Snapshot, *, group: str) -> float | None:
    """Replicas of a reward that score what is made."""
    made, scored = (
        snapshot.rates.get(SAMPLES_MADE),
        snapshot.rates.get((group, f"records_read{{topic={SAMPLES.name}}}")),
    )
    busy, num_heard = snapshot.shares.get((group, "scoring")), snapshot.num_heard(group)
    if made is None or scored is None or busy is None or not num_heard:
        return None
    each_s = scored / num_heard / max(busy, _LEAST_USE)
    return made / each_s if each_s > 0 else None


def _pays(snapshot: Snapshot, *, stage: str, settings: SchedulerSettings) -> bool:
    """Whether a start costs little of the time that is left; unknown times are no reason against it."""
    start, step, left = snapshot.times.get((stage, "starting")), snapshot.times.get(STEP), snapshot.steps_left
    if start is None or step is None or left is None:
        return True
    return start.typical_s <= settings.start_cost_share * left * step.typical_s
