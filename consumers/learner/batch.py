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
    rewards: tuple[RewardUse, ...]  # the required ones, sorted by name
    version: Version  # birth version, the oldest of its runs
    age: int  # learner step at the cut minus birth step


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """The members of one group that are trained: all of one attempt."""

    group: int
    attempt: str
    members: tuple[TrainMember, ...]  # ascending member number; gaps where a member is missing
    age: int  # of the oldest member


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The groups of one step."""

    step: int  # the step this batch produces; 1 is the first
    groups: tuple[TrainGroup, ...]  # ascending group number

    @property
    def members(self) -> Iterator[TrainMember]:
        """All members, group by group."""
        return (member for group in self.groups for member in group.members)

    @property
    def num_samples(self) -> int:
        """Samples in the batch."""
        return sum(len(group.members) for group in self.groups)

    @property
    def max_age(self) -> int:
        """Age of the oldest member, in versions; 0 for a batch without groups."""
        return max((group.age for group in self.groups), default=0)

    def sample_ids(self) -> tuple[str, ...]:
        """`run/group/member` of every member, in the order of `members`."""
        return tuple(sample_id(m.sample.run, group=m.sample.group, member=m.sample.member) for m in self.members)
