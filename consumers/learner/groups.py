"""One group on its way from prompt to batch: attempts, members, and what each of them still lacks.

Role: the join. The assembler owns many of these and knows about time, staleness and the closed set; a group does not.
Data in and out: samples and rewards of one group in, in any order and any number of copies; `Joined` out.
Invariants: attempts never mix; the first attempt whose members are all final wins and freezes the group; a failed or
invalid member is final without a value and never counts as 0 (promise 8); a member becomes final only when its sample
was read, so the reason recorded does not depend on whether sample or reward came first.
Failure: none; a bad record is a fact about a member, kept with its reason.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from pipeline.reward_rule import RewardRule
from schemas.errors import RecordInvalid
from schemas.packed import unpack_f32
from schemas.reasons import Reason, Result
from schemas.records import PromptGroup, ReferenceScore, Reward, Sample, Version, birth_version
from schemas.validation import check_sample
from topics.log import TopicPartition

Problem = tuple[Result, str]
REFERENCE = "~reference"  # stands beside the names of rewards, which have no such character; sorted after them
MAX_REASON_CHARS = 200  # of a text somebody else wrote, on its way to the ledger


class Joined(Enum):
    """What a record was to its group."""

    NEW = auto()
    DUPLICATE = auto()  # a further copy, or of an attempt that did not win
    CONFLICT = auto()  # same slot and attempt, other content; the first one stays
    LATE = auto()  # would have been new, but the group is frozen
    UNKNOWN_REWARD = auto()  # a reward the learner does not train with


class Slot:
    """One member of one attempt."""

    __slots__ = ("absent", "failures", "is_final", "problem", "reference", "sample", "scored_ms", "values", "version")

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self.version: Version | None = None  # birth version
        self.problem: Problem | None = None  # of the sample itself
        self.values: dict[str, float] = {}
        self.scored_ms = 0  # Unix time: when the last of them was given
        self.failures: dict[str, Problem] | None = None  # required rewards that gave no value
        self.absent: frozenset[str] = frozenset()  # optional ones
        self.reference: bytes | None = None  # packed float32, log-probabilities of the reference model
        self.is_final = False

    @property
    def is_valid(self) -> bool:
        """Final, and fit to be trained."""
        return self.is_final and self.verdict() is None

    def has_answer(self, name: str) -> bool:
        """Whether the reward of this name was read."""
        if name == REFERENCE and self.reference is not None:
            return True
        return name in self.values or name in self.absent or (self.failures is not None and name in self.failures)

    def fail(self, name: str, problem: Problem) -> None:
        """Remember why a reward, or the reference, gave no value."""
        self.failures = {**(self.failures or {}), name: problem}

    def verdict(self) -> Problem | None:
        """Why it cannot be trained; the sample's own problem goes first, then the first reward's by name."""
        if self.problem is not None or self.failures is None:
            return self.problem
        return self.failures[min(self.failures)]


class Attempt:
    """One generation try of a whole group."""

    __slots__ = ("is_spoiled", "name", "num_final", "num_valid", "slots")

    def __init__(self, name: str) -> None:
        self.name = name
        self.slots: dict[int, Slot] = {}
        self.num_final = 0
        self.num_valid = 0
        self.is_spoiled = False  # a member lacks a reward without which its whole group is not trained

    def valid_slots(self) -> list[tuple[int, Slot]]:
        """(member, slot) of the valid members, ascending."""
        return sorted((item for item in self.slots.items() if item[1].is_valid), key=lambda item: item[0])

    def drop(self, slot: Slot, reason: Reason) -> None:
        """Turn a valid member into a dropped one."""
        slot.problem = (Result.DROPPED, reason.value)
        self.num_valid -= 1


class OpenGroup:
    """A group without an outcome.

    Args:
        prompt: its prompt record, which says how many members there are.
        needed: fewest valid members to be trained.
        rule: the required rewards.
        needs_reference: members are final only once the reference model has scored them.
        opened_s: when it was opened, on the deadline's clock.
    """

    __slots__ = (
        "attempts",
        "first_offsets",
        "is_vetted",
        "needed",
        "needs_reference",
        "num_bytes",
        "number",
        "opened_s",
        "prompt",
        "rule",
        "size",
        "strays",
        "winner",
    )

    def __init__(
        self,
        prompt: PromptGroup,
        *,
        needed: int,
        rule: RewardRule,
        opened_s: float,
        needs_reference: bool = False,
    ) -> None:
        self.number = prompt.group
        self.size = prompt.group_size
        self.prompt = prompt
        self.needed = needed
        self.rule = rule
        self.opened_s = opened_s
        self.needs_reference = needs_reference
        self.attempts: dict[str, Attempt] = {}
        self.winner: Attempt | None = None
        self.is_vetted = False  # the assembler looked at the versions of the winner
        self.strays: dict[int, Sample] = {}  # by member number outside the group
        self.num_bytes = 0
        self.first_offsets: dict[TopicPartition, int] = {}

    def mark(self, place: TopicPartition, offset: int) -> None:
        """Remember the lowest offset of the group's records per partition."""
        known = self.first_offsets.get(place)
        if known is None or offset < known:
            self.first_offsets[place] = offset

    def add_sample(self, sample: Sample) -> Joined:
        """Join one sample."""
        member = sample.member
        if not 0 <= member < self.size:
            return self._add_stray(sample)
        if self.winner is not None:
            return self._after_winner(sample)
        attempt = self._attempt(sample.attempt)
        slot = attempt.slots.get(member)
        if slot is None:
            slot = attempt.slots[member] = Slot()
        elif slot.sample is not None:
            return Joined.DUPLICATE if slot.sample == sample else Joined.CONFLICT
        slot.sample = sample
        runs = sample.version_runs
        if runs:
            slot.version = runs[0].version if len(runs) == 1 else birth_version(runs)
        slot.problem = _problem_of(sample, self.size)
        self._settle(attempt, slot)
        return Joined.NEW

    def add_reward(self, reward: Reward) -> Joined:
        """Join one reward; a second one of the same name for the same sample and attempt changes nothing."""
        name = reward.name
        if name not in self.rule.weights:
            return Joined.UNKNOWN_REWARD
        if self.winner is not None or not 0 <= reward.member < self.size:
            return self._after_winner_of(reward, name=name)
        attempt = self._attempt(reward.attempt)
        slot = attempt.slots.get(reward.member)
        if slot is None:
            slot = attempt.slots[reward.member] = Slot()
        elif slot.has_answer(name):
            return Joined.DUPLICATE
        value = reward.value
        if value is not None and reward.failure is None and self.rule.can_use(name, value):
            slot.values[name] = value
            slot.scored_ms = max(slot.scored_ms, reward.scored_unix_ms)
        elif name in self.rule.required:
            slot.fail(name, _reward_problem(reward))
            attempt.is_spoiled = attempt.is_spoiled or name in self.rule.failing
        else:
            slot.absent |= {name}
        if slot.sample is not None:
            self._settle(attempt, slot)
        return Joined.NEW

    def add_reference(self, score: ReferenceScore) -> Joined:
        """Join what the reference model says; a second one for the same sample and attempt changes nothing."""
        if not self.needs_reference:
            return Joined.UNKNOWN_REWARD
        if self.winner is not None or not 0 <= score.member < self.size:
            return self._after_winner_of(score, name=REFERENCE)
        attempt = self._attempt(score.attempt)
        slot = attempt.slots.get(score.member)
        if slot is None:
            slot = attempt.slots[score.member] = Slot()
        elif slot.has_answer(REFERENCE):
            return Joined.DUPLICATE
        if score.logprobs is not None and score.failure is None:
            slot.reference = score.logprobs
        else:
            detail = str(score.failure)[:MAX_REASON_CHARS]
            slot.fail(REFERENCE, (Result.FAILED, f"{Reason.REFERENCE_FAILED}: {detail}"))
        if slot.sample is not None:
            self._settle(attempt, slot)
        return Joined.NEW

    def best(self) -> Attempt | None:
        """The winner, else of the attempts, those that can be trained first, the one with most valid members, then most
        read ones; the earlier one at a tie."""
        if self.winner is not None:
            return self.winner
        return max(
            self.attempts.values(),
            key=lambda each: (self.is_trainable(each), each.num_valid, len(each.slots)),
            default=None,
        )

    def is_trainable(self, attempt: Attempt) -> bool:
        """Whether it has as many valid members as are needed."""
        return attempt.num_valid >= max(1, self._needed(attempt))

    def freeze(self) -> bool:
        """Let the best attempt win as it is; False when it has fewer valid members than needed."""
        for attempt in self.attempts.values():
            self._stop_waiting(attempt)
        best = self.best()
        if best is None or best.num_valid < self._needed(best):
            return False
        self.winner = best
        return True

    def hopeful_attempts(self) -> list[Attempt]:
        """Attempts that can still reach the needed number of valid members."""
        return [
            each
            for each in self.attempts.values()
            if self.size - (each.num_final - each.num_valid) >= self._needed(each)
        ]

    def _needed(self, attempt: Attempt) -> int:
        """Valid members without which this attempt is not trained."""
        return self.size if attempt.is_spoiled else self.needed

    def _attempt(self, name: str) -> Attempt:
        attempt = self.attempts.get(name)
        if attempt is None:
            attempt = self.attempts[name] = Attempt(name)
        return attempt

    def _settle(self, attempt: Attempt, slot: Slot) -> None:
        """Make a member final when its fate is known; the last one makes the attempt win."""
        if slot.is_final:
            return
        if slot.reference is not None and slot.sample is not None and not _fits(slot.reference, slot.sample):
            problem = f"{Reason.REFERENCE_FAILED}: {len(slot.reference)} bytes do not fit the completion"
            slot.reference = None
            slot.fail(REFERENCE, (Result.FAILED, problem))
        failed = slot.problem is not None or slot.failures is not None
        if failed or (self.rule.is_settled(slot.values, slot.absent) and self._is_referred(slot)):
            self._make_final(attempt, slot, failed=failed)

    def _is_referred(self, slot: Slot) -> bool:
        return slot.reference is not None or not self.needs_reference

    def _stop_waiting(self, attempt: Attempt) -> None:
        """The time is up: members that lack only optional rewards are final; one that lacks a reward without which no
        group is trained spoils the group."""
        for slot in attempt.slots.values():
            if slot.is_final or slot.sample is None:
                continue
            if self.rule.is_enough(slot.values) and self._is_referred(slot):
                self._make_final(attempt, slot, failed=False)
            elif not all(slot.has_answer(name) for name in self.rule.failing):
                attempt.is_spoiled = True

    def _make_final(self, attempt: Attempt, slot: Slot, *, failed: bool) -> None:
        slot.is_final = True
        attempt.num_final += 1
        attempt.num_valid += not failed
        if attempt.num_final == self.size and self.winner is None:
            self.winner = attempt

    def _add_stray(self, sample: Sample) -> Joined:
        first = self.strays.setdefault(sample.member, sample)
        if first is sample:
            return Joined.NEW
        return Joined.DUPLICATE if first == sample or first.attempt != sample.attempt else Joined.CONFLICT

    def _after_winner(self, sample: Sample) -> Joined:
        if self.winner is None or self.winner.name != sample.attempt:
            return Joined.DUPLICATE
        slot = self.winner.slots.get(sample.member)
        if slot is None or slot.sample is None:
            return Joined.LATE
        return Joined.DUPLICATE if slot.sample == sample else Joined.CONFLICT

    def _after_winner_of(self, answer: Reward | ReferenceScore, *, name: str) -> Joined:
        if self.winner is None:  # a member outside the group: its sample has its outcome already
            return Joined.LATE
        slot = self.winner.slots.get(answer.member)
        if self.winner.name != answer.attempt or (slot is not None and slot.has_answer(name)):
            return Joined.DUPLICATE
        return Joined.LATE


def _fits(logprobs: bytes, sample: Sample) -> bool:
    """Whether there is one finite log-probability per completion token."""
    return len(logprobs) == len(sample.completion_tokens) and bool(np.isfinite(unpack_f32(logprobs)).all())


def _problem_of(sample: Sample, size: int) -> Problem | None:
    if sample.failure is not None:
        return Result.FAILED, sample.failure[:MAX_REASON_CHARS]
    try:
        check_sample(sample, size)
    except RecordInvalid as error:
        return Result.DROPPED, error.reason
    return None


def _reward_problem(reward: Reward) -> Problem:
    if reward.value is not None and reward.failure is None:
        return Result.DROPPED, f"{Reason.NON_FINITE_REWARD}: {reward.name}"
    detail = reward.failure if reward.failure is not None else "neither value nor failure"
    return Result.FAILED, f"{Reason.REWARD_FAILED}: {reward.name}: {detail[:MAX_REASON_CHARS]}"
