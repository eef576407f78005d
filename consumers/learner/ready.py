"""Complete groups waiting for a batch, oldest birth first.

Role: the *select* hook of promise 7, and the last look at a group before it is trained.
Data in and out: groups with a winner in; groups chosen, or found unfit, out.
Invariants: a group is examined once against the lineages and the model; what is chosen has enough valid members, all
of surviving versions and tokens the model has, and is not over the bound. Order is (oldest birth step, group number),
so arrival order decides nothing.
Failure: none; an unfit group goes to `unfit` with its reason.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from consumers.learner.batch import TrainGroup, TrainMember
from consumers.learner.groups import OpenGroup
from consumers.learner.signal import SignalFilter
from consumers.learner.staleness import StalenessRule, version_problem
from pipeline.history import Lineages
from schemas.packed import unpack_i32
from schemas.reasons import Reason
from schemas.records import Sample

Unfit = Callable[[OpenGroup, str], None]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A group that could be in the next batch, as far as the choice needs it."""

    birth_step: int  # of its oldest member
    group: int
    size: int
    absent: tuple[int, ...] = ()  # members that would not be trained, ascending

    @property
    def order(self) -> tuple[int, int]:
        """Groups are chosen in this order."""
        return self.birth_step, self.group


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """What is taken for training, beyond what every sample must be; None: not checked."""

    vocab_size: int | None = None  # token ids are below it
    context_tokens: int | None = None  # most tokens of prompt and completion
    unverified: Literal["train", "drop"] = "train"  # samples with tokens of weights that could not be checked

    def problem(self, sample: Sample) -> Reason | None:
        """Why a sample is not taken: the model cannot, which would break a step for ever, or must not; None: it is."""
        if self.unverified == "drop" and not all(run.verified for run in sample.version_runs):
            return Reason.UNVERIFIED
        num_tokens = (len(sample.prompt_tokens) + len(sample.completion_tokens)) // 4
        if self.context_tokens is not None and num_tokens > self.context_tokens:
            return Reason.TOO_LARGE
        if self.vocab_size is not None:
            for tokens in (sample.prompt_tokens, sample.completion_tokens):
                if tokens and unpack_i32(tokens).max() >= self.vocab_size:
                    return Reason.OUT_OF_VOCABULARY
        return None


class ReadyGroups:
    """A heap of complete groups.

    Args:
        rule: the age bound.
        lineages: which versions survive.
        limits: of the model.
        signal: asked again about a group that lost members here.
        unfit: told of each group that may not be trained, with the reason.
    """

    def __init__(
        self, rule: StalenessRule, *, lineages: Lineages, limits: ModelLimits, signal: SignalFilter, unfit: Unfit
    ) -> None:
        self._rule = rule
        self._limits = limits
        self._lineages = lineages
        self._signal = signal
        self._unfit = unfit
        self._heap: list[tuple[int, int, OpenGroup]] = []  # (oldest birth step, group number, group)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, group: OpenGroup) -> None:
        """Add a group that has a winner."""
        heapq.heappush(self._heap, (_oldest_step(group), group.number, group))

    def ages(self, step: int) -> list[int]:
        """Of all groups, each of its oldest member, for a learner at `step`."""
        return [step - oldest for oldest, _, _ in self._heap]

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()

    def drop_stale(self, step: int) -> None:
        """Report every group over the bound at `step` as unfit."""
        while self._heap and self._rule.is_over(step - self._heap[0][0]):
            self._pop(step)

    def take(self, num_groups: int, *, step: int) -> list[OpenGroup]:
        """Remove and return up to `num_groups` groups fit to be trained at `step`; `push` back what is not used."""
        chosen: list[OpenGroup] = []
        while self._heap and len(chosen) < num_groups:
            group = self._pop(step)
            if group is not None:
                chosen.append(group)
        return chosen

    def take_named(self, numbers: Collection[int]) -> list[OpenGroup]:
        """Remove and return the groups with these numbers, which were taken and pushed back before.

        Raises:
            ValueError: one of them is not here; nothing was removed.
        """
        wanted = set(numbers)
        chosen = [entry[2] for entry in self._heap if entry[1] in wanted]
        if len(chosen) != len(wanted):
            raise ValueError(f"groups {sorted(wanted - {group.number for group in chosen})} are not ready")
        self._heap = [entry for entry in self._heap if entry[1] not in wanted]
        heapq.heapify(self._heap)
        return chosen

    def _pop(self, step: int) -> OpenGroup | None:
        """The first group if it is fit; None when it was reported, or changed and was put back."""
        oldest, _, group = heapq.heappop(self._heap)
        if not group.is_vetted and self._vet(group, step):
            best = group.best()
            if best is None or not group.is_trainable(best):
                self._unfit(group, incomplete(group))
            elif self._signal.drops(group):
                self._unfit(group, Reason.NO_SIGNAL)
            else:
                self.push(group)
            return None
        if self._rule.is_over(step - oldest):
            self._unfit(group, Reason.STALE)
            return None
        return group

    def _vet(self, group: OpenGroup, step: int) -> bool:
        """Drop members of versions that do not survive or do not exist yet, and those the model cannot take; True when
        there were any."""
        group.is_vetted = True
        attempt, changed = group.winner, False
        if attempt is None:
            return False
        for _, slot in attempt.valid_slots():
            problem = None if slot.sample is None else self._problem(slot.sample, step)
            if problem is not None:
                attempt.drop(slot, problem)
                changed = True
        return changed

    def _problem(self, sample: Sample, step: int) -> Reason | None:
        problem = self._limits.problem(sample)
        if problem is not None:
            return problem
        return version_problem(sample.version_runs, lineages=self._lineages, step=step)


def train_group(group: OpenGroup, *, step: int) -> TrainGroup:
    """What the trainer gets of a chosen group, cut by a learner at `step`."""
    if group.winner is None:
        raise ValueError(f"group {group.number} has no complete attempt")
    valid = group.winner.valid_slots()
    names = group.rule.common(slot.values for _, slot in valid)
    members = tuple(
        TrainMember(
            sample=slot.sample,
            reward=group.rule.combine(slot.values, names=names),
            rewards=group.rule.uses(slot.values, names=names),
            version=slot.version,
            age=step - slot.version.step,
            reference=slot.reference,
            scored_unix_ms=slot.scored_ms,
        )
        for _, slot in valid
        if slot.sample is not None and slot.version is not None
    )
    return TrainGroup(
        group=group.number, attempt=group.winner.name, members=members, age=max(member.age for member in members)
    )


def offer_of(group: OpenGroup) -> Offer:
    """What is said of a group that could be trained."""
    if group.winner is None:
        raise ValueError(f"group {group.number} has no complete attempt")
    valid = {number for number, _ in group.winner.valid_slots()}
    absent = () if len(valid) == group.size else tuple(sorted(set(range(group.size)) - valid))
    return Offer(birth_step=_oldest_step(group), group=group.number, size=group.size, absent=absent)


def incomplete(group: OpenGroup) -> str:
    """The reason of a group with too few valid members: `incomplete: 7/8`."""
    return f"{Reason.INCOMPLETE}: {_num_valid(group)}/{group.size}"


def _num_valid(group: OpenGroup) -> int:
    best = group.best()
    return 0 if best is None else best.num_valid


def _oldest_step(group: OpenGroup) -> int:
    if group.winner is None:
        raise ValueError(f"group {group.number} has no complete attempt")
    return min(slot.version.step for _, slot in group.winner.valid_slots() if slot.version is not None)
