"""Groups in the engine: from a prompt to all of its samples.

Role: keeps the engine busy with whole groups and tells which of them ended.
Data in: prompts, perhaps with what another engine made of them; data out: `Finished` groups with one record per member,
`Parted` ones that were given up on demand.
Invariants: every group that was added comes out once, finished, parted or dropped; all members of a group share one
attempt; a failure of the engine fails whole groups, since keeping those members that ended early would favour short
ones (promise 4). A partial that the engine cannot go on from is not used: the group is made afresh.
Failure: `EngineError` when the engine fails several times in a row without finishing anything.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_FAILED,
    Continuing,
    Engine,
    Generation,
    GenerationRequest,
    PromptTokens,
)
from pipeline.environments.episodes import Ended, Episodes, Failed, Say, task_of
from pipeline.stage import StageContext
from producers.rollout.groups import Finished, GroupInFlight, Parted
from producers.rollout.meter import EngineMeter
from producers.rollout.samples import Attempt, all_failed
from producers.rollout.stitching import unusable
from schemas.errors import EngineError, RecordInvalid
from schemas.packed import pack_i32
from schemas.reasons import Reason
from schemas.records import Partial, PromptGroup
from schemas.validation import check_prompt

_IDLE_S = 0.05  # longest wait for environments while the engine has nothing to do
T = TypeVar("T")  # what the caller acknowledges a prompt with


class Generator(Generic[T]):
    """The groups that one engine works on.

    Args:
        engine: called from this thread only.
        context: of the stage.
        max_failures: engine failures in a row that are borne.
        episodes: of the environments that groups act in; None: a completion is one turn.
    """

    def __init__(
        self, engine: Engine, *, context: StageContext, max_failures: int, episodes: Episodes | None = None
    ) -> None:
        self._engine = engine
        self._episodes = episodes
        self._context = context
        self._max_failures = max_failures
        self._num_failures = 0
        self.meter = EngineMeter(context)
        self.max_sequences: int | None = None  # kept in the engine at most; None: as many as it takes
        self._groups: dict[int, GroupInFlight[T]] = {}
        self._parted: list[Parted[T]] = []
        self._waiting: deque[GenerationRequest] = deque()  # members for which there was no slot yet
        self._members: dict[str, tuple[int, int]] = {}  # request id -> (group, member)

    @property
    def num_groups(self) -> int:
        """Groups in flight."""
        return len(self._groups)

    @property
    def num_free_slots(self) -> int:
        """Sequences that could be taken on, after those that wait."""
        return max(0, self.num_open_slots - len(self._waiting))

    @property
    def num_open_slots(self) -> int:
        """Slots for more sequences: none is kept for one that is back from its environment in a moment."""
        if self._episodes is None:
            return self.num_slots
        slots = self.num_slots
        if self._episodes.is_full(self._engine.num_running + slots):
            return 0
        return max(0, slots - self._episodes.num_held)

    @property
    def num_slots(self) -> int:
        """Sequences that may be handed to the engine now."""
        free = self._engine.num_free_slots
        return free if self.max_sequences is None else max(0, min(free, self.max_sequences - self._engine.num_running))

    @property
    def num_waiting(self) -> int:
        """Sequences for which there was no slot yet."""
        return len(self._waiting)

    @property
    def hands_over(self) -> bool:
        """Whether groups can be given up with what was made of them: what an environment holds cannot."""
        return self._episodes is None and isinstance(self._engine, Continuing) and self._engine.hands_over

    def groups(self) -> tuple[int, ...]:
        """Groups in flight that were not given up."""
        return tuple(number for number, group in self._groups.items() if not group.leaving)

    @property
    def is_parked(self) -> bool:
        """Whether all that is in flight waits for its environment, for longer than a moment."""
        episodes, busy = self._episodes, self._waiting or self._engine.num_running
        return episodes is not None and not busy and episodes.num_held == 0 and bool(episodes.parked)

    def parked_groups(self) -> set[int]:
        """Groups of which a member is parked."""
        return set() if self._episodes is None else {self._members[key][0] for key in self._episodes.parked}

    def holds(self, group: int) -> bool:
        """Whether the group is in flight."""
        return group in self._groups

    def renew(self, group: int, ticket: T) -> T:
        """The prompt of a group in flight was delivered again: the newer ticket counts. Gives the older one."""
        found = self._groups[group]
        older, found.ticket = found.ticket, ticket
        return older

    def add(self, prompt: PromptGroup, *, ticket: T, partial: Partial | None = None) -> Finished[T] | None:
        """Take a group on. A prompt that cannot be generated from comes back at once, with failures.

        Args:
            partial: to go on from, if it can be; told in the metric `groups_resumed`.
        """
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
        group = GroupInFlight(ticket=ticket, attempt=attempt, tokens=tokens)
        if partial is not None and self._goes_on(partial, prompt=prompt, tokens=tokens):
            group.go_on(partial)
            self._context.metrics.count("groups_resumed")
        self._groups[prompt.group] = group
        for member, request in group.requests().items():
            self._members[request.request_id] = (prompt.group, member)
            self._begin(request, group, member=member)
        return self._end(prompt.group) if group.is_through else None

    def give_up(self, groups: Iterable[int]) -> None:
        """Stop working on these, whatever the state of their members; they come out of `parted`, a few steps later."""
        unix_ms = self._context.clock.unix_ms()
        for number in groups:
            group = self._groups[number]
            group.leaving = True
            waiting = [each for each in self._waiting if self._members.get(each.request_id, (-1, -1))[0] == number]
            for request in waiting:
                group.left(self._members.pop(request.request_id)[1], None, unix_ms=unix_ms)
            self._waiting = deque(each for each in self._waiting if each.request_id in self._members)
            self._engine.abort([each for each, (held, _) in self._members.items() if held == number])
            if group.is_through:
                self._end(number)

    def parted(self) -> list[Parted[T]]:
        """Groups that were given up and have come to rest, each once."""
        found, self._parted = self._parted, []
        return found

    def drop(self, group: int) -> T:
        """Abort a group in flight; nothing of it comes out. Gives its ticket."""
        found = self._groups.pop(group)
        self._forget({group})
        return found.ticket

    def _begin(self, request: GenerationRequest, group: GroupInFlight[T], *, member: int) -> None:
        if self._episodes is None:
            self._waiting.append(request)
        else:
            self._episodes.begin(task_of(group.attempt.prompt, member=member, text=group.tokens.text), request)

    def advance(self) -> list[Finished[T]]:
        """Submit what waits, advance every sequence, and give the groups that ended."""
        finished = [*self._follow(), *self._submit()]
        if self._engine.num_running == 0:
            return finished
        try:
            generations = self._engine.step()
        except EngineError as error:
            return [*finished, *self._engine_failed(error)]
        for generation in generations:
            finished.extend(self._take(generation))
        return finished

    def _follow(self) -> list[Finished[T]]:
        """What environments have answered; waits for it when there is nothing else to do."""
        episodes = self._episodes
        if episodes is None:
            return []
        idle = not self._waiting and self._engine.num_running == 0 and episodes.num_waiting > 0
        finished: list[Finished[T]] = []
        again: list[GenerationRequest] = []
        for move in episodes.moves(wait_s=_IDLE_S if idle else 0.0):
            if isinstance(move, Say):
                again.append(move.request)
            else:
                finished += self._through(move)
        self._waiting.extendleft(reversed(again))  # before what has not begun: their groups are older
        return finished

    def _through(self, move: Ended | Failed) -> list[Finished[T]]:
        """A trajectory is over."""
        number, member = self._members.pop(move.key)
        group, unix_ms = self._groups[number], self._context.clock.unix_ms()
        if isinstance(move, Ended):
            group.ended(member, move.whole, unix_ms=unix_ms, told=move.told)
        else:
            group.lost(member, reason=move.reason, unix_ms=unix_ms)
        finished = self._end(number) if group.is_through else None
        return [] if finished is None else [finished]

    def _submit(self) -> list[Finished[T]]:
        count = min(self.num_slots, len(self._waiting))
        if count == 0:
            return []
        requests = [self._waiting.popleft() for _ in range(count)]
        if self._episodes is not None:
            self._episodes.submitted(request.request_id for request in requests)
        try:
            self._engine.submit(requests)
        except EngineError:
            return self._submit_singly(requests)
        self.meter.submitted(requests, version=self._engine.version)
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
                self.meter.submitted([request], version=self._engine.version)
            except EngineError as error:
                self._notice("request_refused", group=group, error=error.message)
                failed = self._refused(group)
                finished += [] if failed is None else [failed]
        return finished

    def _refused(self, number: int) -> Finished[T] | None:
        """A group that was to go on from what another engine made is made afresh; any other one fails."""
        group = self._groups[number]
        if not group.before:
            return self._fail_group(number)
        return self.add(group.attempt.prompt, ticket=self.drop(number))

    def _take(self, generation: Generation) -> list[Finished[T]]:
        """Book one ended sequence; one of a group that was dropped meanwhile is forgotten."""
        self.meter.returned(generation)
        place = self._members.get(generation.request_id)
        if place is None:
            return []
        number, member = place
        group = self._groups[number]
        if generation.finish_reason == FINISH_FAILED:
            self._notice("request_failed", group=number, error=generation.failure)
            return [self._fail_group(number)]
        self._num_failures = 0
        self.meter.made(generation)
        if self._episodes is not None and generation.finish_reason != FINISH_ABORT:
            self._episodes.said(generation)
            return []
        del self._members[generation.request_id]
        unix_ms = self._context.clock.unix_ms()
        if generation.finish_reason != FINISH_ABORT:
            group.ended(member, generation, unix_ms=unix_ms)
        elif group.leaving:
            group.left(member, generation, unix_ms=unix_ms)
        else:  # by a swap: whole groups, as for any other failure
            return [self._fail_group(number, reason=Reason.ABORTED)]
        finished = self._end(number) if group.is_through else None
        return [] if finished is None else [finished]

    def _end(self, number: int) -> Finished[T] | None:
        """A group of which nothing more is to come."""
        group = self._groups.pop(number)
        if not group.parts:
            return group.finished()
        self._parted.append(group.parted())
        return None

    def _goes_on(self, partial: Partial, *, prompt: PromptGroup, tokens: PromptTokens) -> bool:
        """Whether this engine can continue what another one made; if not, the notice says why."""
        why = unusable(partial, prompt)
        kind = partial.logprobs_kind
        if not why and partial.prompt_tokens != pack_i32(tokens.tokens):
            why = "its prompt has other tokens here"
        elif not why and not (
            isinstance(self._engine, Continuing) and self._engine.continues(prompt.sampling, logprobs_kind=kind)
        ):
            why = f"this engine cannot go on from tokens with {kind} log-probabilities"
        if self._episodes is not None:
            why = "what its environment holds stayed where it was"
        if why:
            self._notice("partial_unused", group=prompt.group, error=why)
        return not why

    def _engine_failed(self, error: EngineError) -> list[Finished[T]]:
        """Every held sequence is lost, so every group in flight fails, those that wait in part included."""
        self._num_failures += 1
        self.meter.lost()
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
        if self._episodes is not None:
            self._episodes.forget(gone)

    def _notice(self, name: str, *, group: int, error: str) -> None:
        self._context.events.notice(name, details={"group": str(group), "error": error})
