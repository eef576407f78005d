"""One group in the engine: what it began with, what its members have become, and how it ends.

Role: the bookkeeping of one attempt, without the engine.
Data in: a prompt, perhaps a partial to go on from, and generations as they end. Data out: requests; then `Finished`
with a sample per member, or `Parted` with all members as they are.
Invariants: an attempt ends as a whole; members that were ended elsewhere are written again under this attempt, so
attempts are never mixed (promise 4).
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pipeline.engines.base import Generation, GenerationRequest, PromptTokens, kind_of_logprobs
from pipeline.environments.trajectory import Told
from producers.rollout.samples import Attempt, completed, failed
from producers.rollout.stitching import ended_generation, ended_member, joined, open_member, request_of
from schemas.records import Partial, PartialMember, Sample

T = TypeVar("T")  # what the caller acknowledges a prompt with


@dataclass(frozen=True, kw_only=True)
class Finished(Generic[T]):
    """A group whose members all ended."""

    ticket: T
    attempt: Attempt
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True)
class Parted(Generic[T]):
    """A group that was given up before all its members ended."""

    ticket: T
    attempt: Attempt
    prompt_tokens: PromptTokens
    logprobs_kind: str
    members: tuple[PartialMember, ...]


@dataclass(kw_only=True)
class GroupInFlight(Generic[T]):
    """See the module."""

    ticket: T
    attempt: Attempt
    tokens: PromptTokens
    before: Mapping[int, PartialMember] = field(default_factory=dict)  # what members brought along
    logprobs_kind: str = ""
    leaving: bool = False
    samples: dict[int, Sample] = field(default_factory=dict)  # by member
    parts: dict[int, PartialMember] = field(default_factory=dict)  # of those that were ended to go on elsewhere

    @property
    def is_through(self) -> bool:
        """Whether nothing more is to come of any member."""
        return len(self.samples) + len(self.parts) == self.attempt.prompt.group_size

    def go_on(self, partial: Partial) -> None:
        """Begin where this partial ends: its ended members are ours from now on, too."""
        self.before = {member.member: member for member in partial.members}
        self.logprobs_kind = partial.logprobs_kind
        for member in partial.members:
            if member.finish_reason:
                ended = ended_generation(
                    member, request_id=self.request_id(member.member), logprobs_kind=partial.logprobs_kind
                )
                self.samples[member.member] = self._sample(member.member, ended, unix_ms=self.attempt.started_unix_ms)

    def request_id(self, member: int) -> str:
        """Of a member in the engine."""
        return f"{self.attempt.attempt}/{member}"

    def requests(self) -> dict[int, GenerationRequest]:
        """What is to be generated, by member."""
        prompt = self.attempt.prompt
        found = {
            member: GenerationRequest(
                request_id=self.request_id(member),
                prompt_tokens=self.tokens.tokens,
                sampling=prompt.sampling,
                seed=prompt.seed + member,
            )
            for member in range(prompt.group_size)
            if member not in self.samples
        }
        return {
            member: request_of(self.before[member], request=request) if member in self.before else request
            for member, request in found.items()
        }

    def ended(self, member: int, generation: Generation, *, unix_ms: int, told: Told | None = None) -> None:
        """A member's completion came to its end.

        Args:
            told: of its turns; None: it had no environment.
        """
        self.samples[member] = self._sample(member, self._whole(member, generation), unix_ms=unix_ms, told=told)

    def lost(self, member: int, *, reason: str, unix_ms: int) -> None:
        """A member ended without a completion."""
        self.samples[member] = failed(self.attempt, member=member, reason=reason, unix_ms=unix_ms)

    def left(self, member: int, generation: Generation | None, *, unix_ms: int) -> None:
        """A member was ended where it was; None: nothing was added to what it had."""
        had = self.before.get(member, PartialMember(member=member))
        if generation is None:
            self.parts[member] = had
            return
        spent_ms = unix_ms - self.attempt.started_unix_ms + had.spent_ms
        self.parts[member] = open_member(member, self._whole(member, generation), spent_ms=spent_ms)

    def finished(self) -> Finished[T]:
        """All samples."""
        samples = tuple(self.samples[member] for member in sorted(self.samples))
        return Finished(ticket=self.ticket, attempt=self.attempt, samples=samples)

    def parted(self) -> Parted[T]:
        """All members as they are."""
        members = {**self.parts, **{member: ended_member(sample) for member, sample in self.samples.items()}}
        kind = self.logprobs_kind if self.logprobs_kind else kind_of_logprobs(self.attempt.prompt.sampling)
        return Parted(
            ticket=self.ticket,
            attempt=self.attempt,
            prompt_tokens=self.tokens,
            logprobs_kind=kind,
            members=tuple(members[member] for member in sorted(members)),
        )

    def _whole(self, member: int, generation: Generation) -> Generation:
        self.logprobs_kind = generation.logprobs_kind
        return joined(self.before[member], generation) if member in self.before else generation

    def _sample(self, member: int, generation: Generation, *, unix_ms: int, told: Told | None = None) -> Sample:
        had = self.before.get(member)
        return completed(
            self.attempt,
            member=member,
            tokens=self.tokens,
            generation=generation,
            unix_ms=unix_ms,
            before_ms=0 if had is None else had.spent_ms,
            told=told,
        )
