"""Groups in the engine: from a prompt to all of its samples.

Role: keeps the engine busy with whole groups and tells which of them ended.
Data in: prompts; data out: `Finished` groups with one record per member.
Invariants: every group that was added comes out once, finished or dropped; all members of a group share one attempt; a
failure of the engine fails whole groups, since keeping those members that ended early would favour short ones
(promise 4).
Failure: `EngineError` when the engine fails several times in a row without finishing anything.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_FAILED,
    Engine,
    Generation,
    GenerationRequest,
    PromptTokens,
)
from pipeline.stage import StageContext
from producers.rollout.samples import Attempt, all_failed, completed
from schemas.errors import EngineError, RecordInvalid
from schemas.reasons import Reason
from schemas.records import PromptGroup, Sample
from schemas.validation import check_prompt

T = TypeVar("T")  # what the caller acknowledges a prompt with


@dataclass(frozen=True, kw_only=True)
class Finished(Generic[T]):
    """A group whose members all ended."""

    ticket: T
    attempt: Attempt
    samples: tuple[Sample, ...]


@dataclass(kw_only=True)
class _Group(Generic[T]):
    ticket: T
    attempt: Attempt
    tokens: PromptTokens
    samples: dict[int, Sample] = field(default_factory=dict)  # by member


class Generator(Generic[T]):
    """The groups that one engine works on.

    Args:
        engine: called from this thread only.
        context: of the stage.
        max_failures: engine failures in a row that are borne.
    """

    def __init__(self, engine: Engine, *, context: StageContext, max_failures: int) -> None:
        self._engine = engine
        self._context = context
        self._max_failures = max_failures
        self._num_failures = 0
        self.max_sequences: int | None = None  # kept in the engine at most; None: as many as it takes
        self._groups: dict[int, _Group[T]] = {}
        self._waiting: deque[GenerationRequest] = deque()  # members for which there was no slot yet
        self._members: dict[str, tuple[int, int]] = {}  # request id -> (group, member)

    @property
    def num_groups(self) -> int:
        """Groups in flight."""
        return len(self._groups)

    @property
    def num_free_slots(self) -> int:
        """Sequences that could be taken on, after those that wait."""
        return max(0, self.num_slots - len(self._waiting))

    @property
    def num_slots(self) -> int:
        """Sequences that may be handed to the engine now."""
        free = self._engine.num_free_slots
        return free if self.max_sequences is None else max(0, min(free, self.max_sequences - self._engine.num_running))

    def holds(self, group: int) -> bool:
        """Whether the group is in flight."""
        return group in self._groups

    def renew(self, group: int, ticket: T) -> T:
        """The prompt of a group in flight was delivered again: the newer ticket counts. Gives the older one."""
        found = self._groups[group]
        older, found.ticket = found.ticket, ticket
        return older

    def add(self, prompt: PromptGroup, *, ticket: T) -> Finished[T] | None:
        """Take a group on. A prompt that cannot be generated from comes back at once, with failures."""
        attempt = Attempt(
            prompt=prompt,
            attempt=uuid.uuid4().hex,
            producer=self._context.instance,
            started_unix_ms=self._context.clock.unix_ms(),
        )
        try:
            check_prompt(prompt)
            tokens = self._engine.encode_prompt(prompt)
        except RecordInvalid as error:
            self._notice("prompt_invalid", group=prompt.group, error=error.message)
            return self._fail(attempt, ticket=ticket, reason=error.reason)
        self._groups[prompt.group] = _Group(ticket=ticket, attempt=attempt, tokens=tokens)
        for member in range(prompt.group_size):
            request_id = f"{attempt.attempt}/{member}"
            self._members[request_id] = (prompt.group, member)
            self._waiting.append(
                GenerationRequest(
                    request_id=request_id,
                    prompt_tokens=tokens.tokens,
                    sampling=prompt.sampling,
                    seed=prompt.seed + member,
                )
            )
        return None

    def drop(self, group: int) -> T:
        """Abort a group in flight; nothing of it comes out. Gives its ticket."""
        found = self._groups.pop(group)
        self._forget({group})
        return found.ticket

    def advance(self) -> list[Finished[T]]:
        """Submit what waits, advance every sequence, and give the groups that ended."""
        finished = self._submit()
        if self._engine.num_running == 0:
            return finished
        try:
            generations = self._engine.step()
        except EngineError as error:
            return [*finished, *self._engine_failed(error)]
        for generation in generations:
            finished.extend(self._take(generation))
        return finished

    def _submit(self) -> list[Finished[T]]:
        count = min(self.num_slots, len(self._waiting))
        if count == 0:
            return []
        requests = [self._waiting.popleft() for _ in range(count)]
        try:
            self._engine.submit(requests)
        except EngineError:
            return self._submit_singly(requests)
        return []

    def _submit_singly(self, requests: Iterable[GenerationRequest]) -> list[Finished[T]]:
        """One request was at fault and none was taken: find its group, the others go on."""
        finished: list[Finished[T]] = []
        for request in requests:
            group, _ = self._members.get(request.request_id, (-1, -1))
            if group not in self._groups:  # failed a moment ago
                continue
            try:
                self._engine.submit([request])
            except EngineError as error:
                self._notice("request_refused", group=group, error=error.message)
                finished.append(self._fail_group(group))
        return finished

    def _take(self, generation: Generation) -> list[Finished[T]]:
        """Book one ended sequence; one of a group that was dropped meanwhile is forgotten."""
        place = self._members.pop(generation.request_id, None)
        if place is None:
            return []
        number, member = place
        group = self._groups[number]
        if generation.finish_reason == FINISH_FAILED:
            self._notice("request_failed", group=number, error=generation.failure)
            return [self._fail_group(number)]
        self._num_failures = 0
        self._count(generation)
        if generation.finish_reason == FINISH_ABORT:  # by a swap: whole groups, as for any other failure
            return [self._fail_group(number, reason=Reason.ABORTED)]
        group.samples[member] = completed(
            group.attempt,
            member=member,
            tokens=group.tokens,
            generation=generation,
            unix_ms=self._context.clock.unix_ms(),
        )
        if len(group.samples) < group.attempt.prompt.group_size:
            return []
        del self._groups[number]
        samples = tuple(group.samples[each] for each in sorted(group.samples))
        return [Finished(ticket=group.ticket, attempt=group.attempt, samples=samples)]

    def _count(self, generation: Generation) -> None:
        self._context.metrics.count("tokens_generated", len(generation.tokens))
        num_unverified = sum(run.num_tokens for run in generation.version_runs if not run.verified)
        if num_unverified:
            self._context.metrics.count("tokens_unverified", num_unverified)

    def _engine_failed(self, error: EngineError) -> list[Finished[T]]:
        """Every held sequence is lost, so every group in flight fails, those that wait in part included."""
        self._num_failures += 1
        self._context.events.notice(
            "engine_failed", details={"error": error.message}, num_groups=self.num_groups, in_a_row=self._num_failures
        )
        if self._num_failures >= self._max_failures:
            raise EngineError(
                f"the engine failed {self._num_failures} times in a row, at last with: {error.message}", hint=error.hint
            ) from error
        return [self._fail_group(group) for group in list(self._groups)]

    def _fail_group(self, number: int, *, reason: str = Reason.ENGINE_FAILED) -> Finished[T]:
        group = self._groups.pop(number)
        self._forget({number})
        return self._fail(group.attempt, ticket=group.ticket, reason=reason)

    def _fail(self, attempt: Attempt, *, ticket: T, reason: str) -> Finished[T]:
        samples = all_failed(attempt, reason=reason, unix_ms=self._context.clock.unix_ms())
        return Finished(ticket=ticket, attempt=attempt, samples=samples)

    def _forget(self, groups: set[int]) -> None:
        """Take the requests of these groups out of the engine and the queue in front of it."""
        gone = [request_id for request_id, (group, _) in self._members.items() if group in groups]
        for request_id in gone:
            del self._members[request_id]
        self._waiting = deque(each for each in self._waiting if each.request_id in self._members)
        self._engine.abort(gone)

    def _notice(self, name: str, *, group: int, error: str) -> None:
        self._context.events.notice(name, details={"group": str(group), "error": error})
