"""The policy `reactive`: replicas by watermarks on who waits for whom, besides all that `static` does.

Role: a policy that needs no model of the run. Rollouts: one more while the learner waits for data, the engines are busy
and there are prompts that none of them has taken up; one less while nobody waits and slots are empty. Rewards, and
the reference model: by their lag in seconds, and by the share of time that they score.
Invariants: see `consumers.scheduler.scaling`; between the marks everything stays as it is (hysteresis).
Failure: none.
"""

from __future__ import annotations

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.policy import decide as decide_static
from consumers.scheduler.pool import Lending, Pool, Split, lend
from consumers.scheduler.scaling import Wish, scale
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import LEARNER, ROLLOUT, Scalable, Snapshot
from topics.catalog import SAMPLES

LEARNER_WAITS = ("learner", "waiting_for_data")


def decide(snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
    """What `static` decides, and scale commands."""
    lent = lend(snapshot, settings, wishes=lending)
    return [*decide_static(snapshot, settings), *lent, *scale(snapshot, settings, wishes=wishes)]


def wishes(snapshot: Snapshot, target: Scalable, *, settings: SchedulerSettings) -> Wish | None:
    """See the module."""
    now = snapshot.replicas_wanted(target)
    if target.target == LEARNER or (target.target == ROLLOUT and snapshot.slots is not None):
        return None  # by lending, or not at all
    if target.target == ROLLOUT:
        return _of_rollouts(snapshot, settings, now=now)
    return _of_scorers(snapshot, settings, target=target, now=now)


def lending(snapshot: Snapshot, pool: Pool, *, settings: SchedulerSettings) -> Lending | None:
    """In a pool, one rollout more is one rank less, and the reverse."""
    wish = _of_rollouts(snapshot, settings, now=pool.now.rollouts)
    if wish is None:
        return None
    split = Split(rollouts=wish.replicas, ranks=pool.slots - wish.replicas)
    if split not in pool.splits():
        return None
    return Lending(split=split, reason=wish.reason, assumed=wish.assumed)


def _of_rollouts(snapshot: Snapshot, settings: SchedulerSettings, *, now: int) -> Wish | None:
    use = snapshot.slot_use
    if use is None or not snapshot.is_heard("learner", silence_s=settings.silence_s):
        return None
    waits = snapshot.shares.get(LEARNER_WAITS, 0.0)
    assumed = {"learner_waits": f"{waits:.2f}", "slot_use": f"{use:.2f}"}
    if waits >= settings.starved_share and use >= settings.busy_share and snapshot.has_unstarted_prompts():
        why = f"the learner waits for data {waits:.0%} of the time, {use:.0%} of the slots are in use"
        return Wish(replicas=now + 1, reason=why, assumed=assumed)
    if waits < settings.starved_share / 2 and use <= settings.idle_share:
        why = f"the learner hardly waits ({waits:.0%}), {use:.0%} of the slots are in use"
        return Wish(replicas=now - 1, reason=why, assumed=assumed)
    return None


def _of_scorers(snapshot: Snapshot, settings: SchedulerSettings, *, target: Scalable, now: int) -> Wish | None:
    """Of a reward, or of the reference model."""
    lag_s = snapshot.lag_s((target.group, SAMPLES.name), owner=target.owner)
    busy = snapshot.shares.get((target.owner, "scoring"))
    if lag_s is None or busy is None:
        return None
    assumed = {"lag_s": f"{lag_s:.3g}", "scoring": f"{busy:.2f}"}
    if lag_s >= settings.reward_lag_s and busy >= settings.busy_share:
        return Wish(replicas=now + 1, reason=f"{lag_s:.3g} s behind, scoring {busy:.0%} of the time", assumed=assumed)
    if lag_s < settings.reward_lag_s / 2 and busy * now <= settings.idle_share * (now - 1):
        return Wish(replicas=now - 1, reason=f"{lag_s:.3g} s behind, scoring {busy:.0%} of the time", assumed=assumed)
    return None
