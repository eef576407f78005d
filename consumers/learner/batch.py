"""What one optimizer step trains on.

Role: the hand-over from the assembler (no torch) to the trainer (torch).
Data in and out: plain frozen values around decoded samples; packed arrays stay packed.
Invariants: groups are sorted by number and members by member number, so a batch does not depend on arrival order; every
member is valid, scored by all required rewards, of one attempt, of a surviving version, and within the age bound.
Failure: none; the assembler has checked everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.records import RewardUse, Sample, Version, sample_id


@dataclass(frozen=True, kw_only=True)
class TrainMember:
    """One sample and what it is worth."""

    sample: Sample
    reward: float  # sum of weight * value over `rewards`
    rewards: tuple[RewardUse, ...]  # those that counted, with the weight they counted with, sorted by name
    version: Version  # birth version, the oldest of its runs
    age: int  # learner step at the cut minus birth step
    reference: bytes | None = None  # packed float32, log-probabilities of the frozen reference model; None: none scores
    scored_unix_ms: int = 0  # when the last of its rewards was given; for people


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """The members of one group that are trained: all of one attempt."""

    group: int
    attempt: str
    members: tuple[TrainMember, ...]  # ascending member number; gaps where a member is missing
    age: int  # of the oldest member


@dataclass(frozen=True, kw_only=True)
class PlannedGroup:
    """A group of a batch, as every rank knows it."""

    group: int
    size: int
    absent: tuple[int, ...] = ()  # members that are not trained, ascending

    @property
    def members(self) -> list[int]:
        """Numbers of the members that are trained, ascending."""
        return [member for member in range(self.size) if member not in self.absent]


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """All groups of a step that several ranks train, each holding some of them."""

    run: str
    groups: tuple[PlannedGroup, ...]  # ascending group number

    def sample_ids(self) -> tuple[str, ...]:
        """`run/group/member` of every member, group by group."""
        return tuple(
            sample_id(self.run, group=group.group, member=member) for group in self.groups for member in group.members
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The groups of one step, or one rank's share of them, which may be empty."""

    step: int  # the step this batch produces; 1 is the first
    groups: tuple[TrainGroup, ...]  # ascending group number
    plan: BatchPlan | None = None  # of the whole batch, where `groups` is a share

    @property
    def members(self) -> Iterator[TrainMember]:
        """All members, group by group."""
        return (member for group in self.groups for member in group.members)

    @property
    def num_samples(self) -> int:
        """Samples held here."""
        return sum(len(group.members) for group in self.groups)

    @property
    def max_age(self) -> int:
        """Age of the oldest member, in versions; 0 for a batch without groups."""
        return max((group.age for group in self.groups), default=0)

    def sample_ids(self) -> tuple[str, ...]:
        """`run/group/member` of every member of the whole batch, group by group."""
        if self.plan is not None:
            return self.plan.sample_ids()
        return tuple(sample_id(m.sample.run, group=m.sample.group, member=m.sample.member) for m in self.members)
