"""From a group that closes to the terminal record of each of its ids.

Role: writes down what became of every member (promise 1).
Data in and out: an `OpenGroup` that is about to be forgotten; an `OutcomeDraft`, which the ledger completes with
lineage, step and sequence number.
Invariants: members 0 .. G-1 appear exactly once, in order, followed by ids with a number outside the group.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from consumers.learner.batch import TrainGroup
from consumers.learner.groups import Attempt, OpenGroup, Slot
from schemas.reasons import Reason, Result
from schemas.records import MemberOutcome, Version

AgeOf = Callable[[Version | None], int | None]


@dataclass(frozen=True, kw_only=True)
class OutcomeDraft:
    """An Outcome before the ledger gives it lineage, step and sequence number."""

    group: int
    result: Result
    reason: str | None
    attempt: str | None
    members: tuple[MemberOutcome, ...]

    def count(self, result: Result) -> int:
        """Members with this result."""
        return sum(member.result == result for member in self.members)


def trained_draft(group: OpenGroup, trained: TrainGroup, *, age_of: AgeOf) -> OutcomeDraft:
    """The outcome of a group that a step trained on; `age_of` ages its other members."""
    done = {
        member.sample.member: MemberOutcome(
            member=member.sample.member,
            attempt=trained.attempt,
            result=Result.TRAINED,
            version=member.version,
            age=member.age,
            rewards=member.rewards,
        )
        for member in trained.members
    }
    rest = _Rest(group, attempt=group.winner, valid_reason=lambda _: Reason.GROUP_DROPPED, age_of=age_of)
    return OutcomeDraft(
        group=group.number,
        result=Result.TRAINED,
        reason=None,
        attempt=trained.attempt,
        members=(
            *(done[number] if number in done else rest.outcome(number) for number in range(group.size)),
            *rest.strays(),
        ),
    )


def with_gaps(drafts: Sequence[OutcomeDraft], gaps: Mapping[tuple[int, int], bytes]) -> list[OutcomeDraft]:
    """The same outcomes; those of trained samples among `gaps` tell their distance token by token."""
    groups = {group for group, _ in gaps}
    return [draft if draft.group not in groups else _with_gaps(draft, gaps) for draft in drafts]


def _with_gaps(draft: OutcomeDraft, gaps: Mapping[tuple[int, int], bytes]) -> OutcomeDraft:
    members = (
        replace(member, logprob_gap=gap)
        if (gap := gaps.get((draft.group, member.member))) is not None and member.result == Result.TRAINED
        else member
        for member in draft.members
    )
    return replace(draft, members=tuple(members))


def dropped_draft(
    group: OpenGroup, reason: str, *, age_of: AgeOf, valid_reason: Callable[[int | None], str]
) -> OutcomeDraft:
    """The outcome of a group that is not trained; `valid_reason` gives a valid member's reason from its age."""
    best = group.best()
    of_valid = (lambda _: Reason.NO_SIGNAL) if reason == Reason.NO_SIGNAL else valid_reason
    rest = _Rest(group, attempt=best, valid_reason=of_valid, age_of=age_of, is_stale=reason == Reason.STALE)
    return OutcomeDraft(
        group=group.number,
        result=Result.DROPPED,
        reason=reason,
        attempt=None if group.winner is None else group.winner.name,
        members=(*(rest.outcome(number) for number in range(group.size)), *rest.strays()),
    )


class _Rest:
    """Outcomes of members that were not trained."""

    def __init__(
        self,
        group: OpenGroup,
        *,
        attempt: Attempt | None,
        valid_reason: Callable[[int | None], str],
        age_of: AgeOf,
        is_stale: bool = False,
    ) -> None:
        self._group = group
        self._attempt = attempt
        self._valid_reason = valid_reason
        self._age_of = age_of
        self._is_stale = is_stale

    def outcome(self, number: int) -> MemberOutcome:
        slot = None if self._attempt is None else self._attempt.slots.get(number)
        if self._attempt is None or slot is None or slot.sample is None:
            return MemberOutcome(member=number, result=Result.DROPPED, reason=Reason.NEVER_ARRIVED)
        age = self._age_of(slot.version)
        result, reason = self._fate(slot, age)
        return MemberOutcome(
            member=number,
            attempt=self._attempt.name,
            result=result,
            reason=reason,
            version=slot.version,
            age=age,
            rewards=self._group.rule.uses(slot.values),
        )

    def strays(self) -> tuple[MemberOutcome, ...]:
        return tuple(
            MemberOutcome(member=number, attempt=sample.attempt, result=Result.DROPPED, reason=Reason.BAD_GROUP_SIZE)
            for number, sample in sorted(self._group.strays.items())
        )

    def _fate(self, slot: Slot, age: int | None) -> tuple[Result, str]:
        problem = slot.verdict()
        if problem is not None:
            return problem
        if not slot.is_final and not self._is_stale:  # of a stale group no reward would have changed the end
            return Result.DROPPED, Reason.NOT_SCORED
        return Result.DROPPED, self._valid_reason(age)
