"""A fixed pool of slots that rollouts and learner ranks share: how it is split best, and when a change pays.

Role: what the policies know of lending. Model: a rollout whose slots are full makes r groups per second; a learner of
L ranks works parallel / L + rest seconds per step, where only `forward_backward` is divided among ranks. With R
rollouts a step then takes T(R, L) = max(B / (R r), parallel / L + rest): who of the two is slower. The best split has
the lowest T.
Data in: medians and rates of the stage clock. Data out: a wished split, and the two commands that lead to it.
Invariants: rollouts and ranks together never exceed the slots, each side stays within its limits; a move takes half of
the side that lends at most (rounded up); nothing moves before the last change has been carried out and has cooled down,
nor while anything is unknown; both commands are given at once, and who carries them out waits for the slot to be free.
Failure: none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import LEARNER, ROLLOUT, Scalable, Snapshot
from consumers.scheduler.stage_clock import AWAY, FORWARD_BACKWARD, STARTING
from topics.catalog import SAMPLES

SAMPLES_MADE = (ROLLOUT, f"records_written{{topic={SAMPLES.name}}}")
LEAST_STEPS = 3  # a median of fewer is none
LEAST_USE = 0.05  # below, what a full producer would make is a guess
_REST = ("staging_weights", "publishing", "reading")  # of each step, whatever the number of ranks
_PAYS = 2.0  # what a change gains must be this many times what it costs


@dataclass(frozen=True, kw_only=True)
class Split:
    """So many of each."""

    rollouts: int
    ranks: int


@dataclass(frozen=True, kw_only=True)
class Lending:
    """A wished split, and why."""

    split: Split
    reason: str
    assumed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """T(R, L) of the module."""

    groups_per_step: int
    groups_s: float  # of one rollout whose slots are full
    parallel_s: float  # work of one step in rank-seconds
    rest_s: float  # work of one step that ranks do not divide

    def making_s(self, rollouts: int) -> float:
        """Seconds in which the groups of a step are made."""
        return self.groups_per_step / (rollouts * self.groups_s) if rollouts else math.inf

    def training_s(self, ranks: int) -> float:
        """Seconds in which they are trained."""
        return self.parallel_s / ranks + self.rest_s if ranks else math.inf

    def step_s(self, split: Split) -> float:
        """Seconds per step of a split."""
        return max(self.making_s(split.rollouts), self.training_s(split.ranks))


def rollout_groups_s(snapshot: Snapshot, *, late: bool = False) -> float | None:
    """Groups per second of one rollout whose slots are full, lately or over the whole window; None: not known."""
    rates = snapshot.late_rates if late else snapshot.rates
    made, use, num_heard = rates.get(SAMPLES_MADE), snapshot.slot_use, snapshot.num_heard(ROLLOUT)
    if made is None or use is None or use < LEAST_USE or not num_heard:
        return None
    each_s = made / snapshot.group_size / num_heard / use
    return each_s if each_s > 0 else None


def step_model(snapshot: Snapshot, *, ranks: int) -> StepModel | None:
    """The model at the present number of ranks; None: something of it is not known yet."""
    groups_s, trained = rollout_groups_s(snapshot), snapshot.times.get(FORWARD_BACKWARD)
    if groups_s is None or trained is None or trained.num_spans < LEAST_STEPS:
        return None
    rest = (snapshot.times.get((LEARNER, phase)) for phase in _REST)
    return StepModel(
        groups_per_step=snapshot.groups_per_step,
        groups_s=groups_s,
        parallel_s=trained.typical_s * ranks,
        rest_s=sum(each.typical_s for each in rest if each is not None),
    )


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The two sides, and how the pool is split now."""

    slots: int
    rollout: Scalable
    learner: Scalable
    now: Split

    def splits(self) -> Iterator[Split]:
        """All that use the whole pool, or as much of it as the limits allow."""
        for rollouts in range(self.rollout.least, self.rollout.most + 1):
            ranks = min(self.slots - rollouts, self.learner.most)
            if ranks >= self.learner.least:
                yield Split(rollouts=rollouts, ranks=ranks)

    def best(self, model: StepModel, *, slack: float) -> Split:
        """The split with the shortest step; of those that take no more than a share `slack` longer the nearest, since
        what lies far from what was measured is known least."""
        shortest_s = min(model.step_s(split) for split in self.splits())
        good = [split for split in self.splits() if model.step_s(split) <= shortest_s * (1 + slack)]
        return min(good, key=lambda split: (abs(split.rollouts - self.now.rollouts), model.step_s(split)))

    def towards(self, wished: Split) -> Split:
        """How far one change may go: from the side that lends, half of it at most (rounded up)."""
        more = wished.rollouts - self.now.rollouts
        lender = self.now.ranks if more > 0 else self.now.rollouts
        most = -(-lender // 2)
        moved = min(max(more, -most), most)
        most_rollouts = min(self.rollout.most, self.slots - self.learner.least)
        rollouts = max(self.rollout.least, min(self.now.rollouts + moved, most_rollouts))
        return Split(rollouts=rollouts, ranks=min(self.slots - rollouts, self.learner.most))


def pool_of(snapshot: Snapshot) -> Pool | None:
    """The pool of the run; None: its sides share none."""
    sides = {target.target: target for target in snapshot.fleet}
    if snapshot.slots is None or ROLLOUT not in sides or LEARNER not in sides:
        return None
    rollout, learner = sides[ROLLOUT], sides[LEARNER]
    now = Split(rollouts=snapshot.replicas_wanted(rollout), ranks=snapshot.replicas_wanted(learner))
    return Pool(slots=snapshot.slots, rollout=rollout, learner=learner, now=now)


def best_lending(snapshot: Snapshot, pool: Pool, *, settings: SchedulerSettings) -> Lending | None:
    """The split with the shortest step, if changing to it pays; None: stay.

    Nothing is wished while the rate of samples is changing: half a change would be followed by half a move.
    """
    model = step_model(snapshot, ranks=pool.now.ranks)
    late_s = rollout_groups_s(snapshot, late=True)
    if model is None or late_s is None or not any(pool.splits()):
        return None
    if abs(late_s - model.groups_s) > settings.steady_share * model.groups_s:
        return None
    best = pool.best(model, slack=settings.near_slack)
    now_s, best_s = model.step_s(pool.now), model.step_s(best)
    slack = settings.back_slack if _goes_back(snapshot, pool, to=best) else settings.scale_slack
    if now_s <= best_s * (1 + slack) or not _pays(snapshot, gain_s=now_s - best_s):
        return None
    if best.rollouts > pool.now.rollouts and not snapshot.has_unstarted_prompts():
        return None
    return Lending(
        split=best,
        reason=f"a step takes {now_s:.3g} s, with {best.rollouts} rollouts and {best.ranks} ranks {best_s:.3g} s",
        assumed={
            "rollout_groups_s": f"{model.groups_s:.3g}",
            "training_s": f"{model.training_s(pool.now.ranks):.3g}",
            "making_s": f"{model.making_s(pool.now.rollouts):.3g}",
        },
    )


class LendingWishes(Protocol):
    """What a policy wishes for a pool; None: it is not known, or as it is."""

    def __call__(self, snapshot: Snapshot, pool: Pool, *, settings: SchedulerSettings) -> Lending | None: ...


def lend(snapshot: Snapshot, settings: SchedulerSettings, *, wishes: LendingWishes) -> list[CommandDraft]:
    """The two commands that go towards a wished split; none while the last ones are under way, or without a pool."""
    pool = pool_of(snapshot)
    if pool is None or snapshot.observed_s < max(settings.settle_s, settings.rate_window_s):
        return []
    wish = wishes(snapshot, pool, settings=settings)
    if wish is None:
        return []
    split, now = pool.towards(wish.split), pool.now
    if split == now or _must_wait(snapshot, pool, settings=settings):
        return []
    drafts = [
        CommandDraft(
            target=target.target,
            kind="scale",
            replicas=replicas,
            reason=f"{before} to {replicas}: {wish.reason}",
            assumed={"replicas": str(before), **wish.assumed},
        )
        for target, before, replicas in (
            (pool.rollout, now.rollouts, split.rollouts),
            (pool.learner, now.ranks, split.ranks),
        )
        if before != replicas
    ]
    return sorted(drafts, key=lambda draft: draft.target == (ROLLOUT if split.rollouts > now.rollouts else LEARNER))


def _goes_back(snapshot: Snapshot, pool: Pool, *, to: Split) -> bool:
    """Whether a split lies in the direction that the last change came from."""
    last = snapshot.standing.scale.get(ROLLOUT)
    if last is None:
        return False
    before = pool.rollout.initial if last.before is None else last.before
    return (to.rollouts - last.replicas) * (before - last.replicas) > 0


def _pays(snapshot: Snapshot, *, gain_s: float) -> bool:
    """Whether the steps that are left gain more than the processes of a change are away; unknown times are no reason
    against it."""
    left, times = snapshot.steps_left, snapshot.times
    starts = (times.get((ROLLOUT, STARTING)), times.get(AWAY, times.get((LEARNER, STARTING))))
    away_s = sum(each.typical_s for each in starts if each is not None)
    return left is None or gain_s * left > _PAYS * away_s


def _must_wait(snapshot: Snapshot, pool: Pool, *, settings: SchedulerSettings) -> bool:
    """Until the last change has been carried out, and for the longer of the cool-downs after the newest process came:
    what was lent is kept, and rates are over a time in which nothing changed."""
    cool_down_s = max(settings.scale_up_cool_down_s, settings.scale_down_cool_down_s)
    for target in (pool.rollout, pool.learner):
        if snapshot.replicas_heard(target, silence_s=settings.silence_s) != snapshot.replicas_wanted(target):
            return True
        last = snapshot.standing.scale.get(target.target)
        if last is not None and snapshot.now_s < last.at_s + cool_down_s:
            return True
    newest_s = max((one.began_s for one in snapshot.instances if one.stage in (ROLLOUT, LEARNER)), default=0.0)
    return snapshot.now_s < newest_s + cool_down_s
