"""The policy `stage_aware`: replicas from what the learner could train and what one replica makes.

Role: predicts instead of waiting for somebody to starve. Let W be the learner's own time per step (that of its phases,
without the wait for data) and r the groups per second of one rollout producer whose slots are full. The learner takes
B / W groups per second at most, so B / (W r) producers keep it busy. Rewards: samples made per second over those that
one replica scores while it scores.
Data in: medians and rates of the stage clock; what is not known leaves things as they are.
Invariants: see `consumers.scheduler.scaling`. More is asked for only when a producer's start costs less than a set
share of the time that is left, and rollouts only while there are prompts that no engine has taken up.
Failure: none.
"""

from __future__ import annotations

import math

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.policy import decide as decide_static
from consumers.scheduler.pool import LEAST_USE, SAMPLES_MADE, best_lending, lend, pool_of, rollout_groups_s, step_model
from consumers.scheduler.reactive import LEARNER_WAITS
from consumers.scheduler.scaling import Wish, scale
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import LEARNER, ROLLOUT, Scalable, Snapshot
from consumers.scheduler.stage_clock import STARTING, STEP
from topics.catalog import SAMPLES


def decide(snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
    """What `static` decides, and scale commands."""
    lent = lend(snapshot, settings, wishes=best_lending)
    return [*decide_static(snapshot, settings), *lent, *scale(snapshot, settings, wishes=wishes)]


def wishes(snapshot: Snapshot, target: Scalable, *, settings: SchedulerSettings) -> Wish | None:
    """See the module."""
    if target.target in (ROLLOUT, LEARNER) and pool_of(snapshot) is not None:
        return None  # by lending
    needed = _needed(snapshot, target)
    if needed is None or not math.isfinite(needed):
        return None
    now, slack = snapshot.replicas_wanted(target), settings.scale_slack
    reason, assumed = f"{needed:.2f} would do", {"needed": f"{needed:.2f}"}
    if needed > now * (1 + slack) and _may_add(snapshot, target, settings=settings):
        return Wish(replicas=math.ceil(needed * (1 - slack)), reason=reason, assumed=assumed)
    if needed < (now - 1) * (1 - slack):
        return Wish(replicas=max(1, math.ceil(needed)), reason=reason, assumed=assumed)
    return None


def _may_add(snapshot: Snapshot, target: Scalable, *, settings: SchedulerSettings) -> bool:
    """Whether one more would have work, and its start pays."""
    if target.target == ROLLOUT and not snapshot.has_unstarted_prompts():
        return False
    return _pays(snapshot, stage=target.stage, settings=settings)


def _needed(snapshot: Snapshot, target: Scalable) -> float | None:
    """Replicas that would just do; None: not known."""
    if target.target == ROLLOUT:
        return _rollouts(snapshot)
    return _ranks(snapshot, target) if target.target == LEARNER else _replicas(snapshot, owner=target.owner)


def _rollouts(snapshot: Snapshot) -> float | None:
    """Producers, their slots full, that keep the learner busy."""
    work_s, each_s = _work_s(snapshot), rollout_groups_s(snapshot)
    if work_s is None or each_s is None:
        return None
    return snapshot.groups_per_step / work_s / each_s if work_s > 0 else None


def _work_s(snapshot: Snapshot) -> float | None:
    """The learner's own time per step: that of its phases. A step's time without the share of it that is waited is the
    same while nothing changes, but the one is of 64 steps and the other of the last seconds."""
    model, step = step_model(snapshot, ranks=1), snapshot.times.get(STEP)
    if model is not None:
        return model.training_s(1)
    return None if step is None else step.typical_s * (1 - snapshot.shares.get(LEARNER_WAITS, 0.0))


def _ranks(snapshot: Snapshot, target: Scalable) -> float | None:
    """Ranks that train what the producers make when their slots are full: infinitely many where even that would not do
    in the part of a step that ranks do not divide."""
    model = step_model(snapshot, ranks=snapshot.replicas_wanted(target))
    if model is None:
        return None
    left_s = model.making_s(snapshot.num_heard(ROLLOUT)) - model.rest_s
    return model.parallel_s / left_s if left_s > 0 else math.inf


def _replicas(snapshot: Snapshot, *, owner: str) -> float | None:
    """Replicas of a reward, or of the reference model, that score what is made."""
    made, scored = (
        snapshot.rates.get(SAMPLES_MADE),
        snapshot.rates.get((owner, f"records_read{{topic={SAMPLES.name}}}")),
    )
    busy, num_heard = snapshot.shares.get((owner, "scoring")), snapshot.num_heard(owner)
    if made is None or scored is None or busy is None or not num_heard:
        return None
    each_s = scored / num_heard / max(busy, LEAST_USE)
    return made / each_s if each_s > 0 else None


def _pays(snapshot: Snapshot, *, stage: str, settings: SchedulerSettings) -> bool:
    """Whether a start costs little of the time that is left; unknown times are no reason against it."""
    start, step, left = snapshot.times.get((stage, STARTING)), snapshot.times.get(STEP), snapshot.steps_left
    if start is None or step is None or left is None:
        return True
    return start.typical_s <= settings.start_cost_share * left * step.typical_s
