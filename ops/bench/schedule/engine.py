"""An engine that takes the workload's time and makes no effort: each sequence gets tokens at a set rate.

Role: what a rollout producer of `bench schedule` serves with; all else of the producer is real.
Data in and out: see `pipeline.engines.base.Engine`.
Invariants: a response's length depends on its group and member only; a token's version is the one that was served when
it was due; the rate follows the run at once.
Failure: `EngineError` when it is asked before the first version.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.bench.schedule.world import World
from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_LENGTH,
    PROCESSED,
    EngineState,
    Generation,
    GenerationRequest,
    PromptTokens,
    StateTensor,
)
from schemas.errors import EngineError
from schemas.records import PromptGroup, Version, VersionRun

FIRST_TOKEN = 4  # of the tiny model's alphabet, after the special ones
_BASE = 16
_NAP_S = 0.02  # real: longest rest of a step
_VERSIONS = 64  # that are remembered, more than a sequence can outlive


@dataclass(frozen=True, kw_only=True)
class _Sequence:
    """All sequences of an engine get tokens at one rate, so a sequence is a span of the tokens that each has got."""

    begin: float  # tokens that a sequence which had been there for ever would have had when this one began
    length: int

    @property
    def end(self) -> float:
        """The same when it is done."""
        return self.begin + self.length


class TimedEngine:
    """See the module.

    Args:
        name: of the engine in the world's books.
        ready_s: model time from which on it has room.
    """

    def __init__(self, world: World, *, name: str, ready_s: float) -> None:
        self._world = world
        self._name = name
        self._places = world.workload.sequences_per_slot
        self._held: dict[str, _Sequence] = {}
        self._ends: list[tuple[float, str]] = []  # heap; aborted ones stay in it until their time
        self._aborted: list[Generation] = []
        self._version: Version | None = None
        self._served: list[tuple[float, Version]] = []  # tokens at which each version began, the last ones
        self._tokens = 0.0  # that a sequence which had been there for ever would have
        self._ready_s = ready_s
        self._is_open = False
        self._at_s = world.now_s()
        self._speed = world.tokens_s

    @property
    def state(self) -> EngineState:
        """See `base.Engine`."""
        return EngineState.COLD if self._version is None else EngineState.SERVING

    @property
    def version(self) -> Version | None:
        """See `base.Engine`."""
        return self._version

    @property
    def num_running(self) -> int:
        """See `base.Engine`."""
        return len(self._held) + len(self._aborted)

    @property
    def num_free_slots(self) -> int:
        """See `base.Engine`; none while its slot is under way."""
        if not self._is_open:
            if self._version is None or self._world.now_s() < self._ready_s:
                return 0
            self._is_open = True
            self._world.opened(self._name, num_places=self._places)
        return self._places - self.num_running

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """The group's number in digits, so that a request says which one it is of."""
        digits = [FIRST_TOKEN + int(digit, _BASE) for digit in f"{group.group:x}"]
        return PromptTokens(text=str(group.group), tokens=np.array(digits, dtype=np.int32))

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `base.Engine.submit`."""
        if self._version is None:
            raise EngineError("the engine serves no version")
        self._advance()
        for request in requests:
            digits = "".join(f"{int(token) - FIRST_TOKEN:x}" for token in request.prompt_tokens)
            member = int(request.request_id.rpartition("/")[2])
            length = self._world.workload.lengths(int(digits, _BASE))[member]
            one = _Sequence(begin=self._tokens, length=length)
            self._held[request.request_id] = one
            heapq.heappush(self._ends, (one.end, request.request_id))
        self._world.uses(self._name, len(self._held))

    def step(self) -> list[Generation]:
        """Rest until a sequence is done, for a moment at most; gives those that are."""
        self._advance()
        if not self._aborted and self._ends and self._ends[0][0] > self._tokens:
            left_s = (self._ends[0][0] - self._tokens) / self._speed * self._world.scale
            time.sleep(min(_NAP_S, left_s))
            self._advance()
        done, self._aborted = self._aborted, []
        while self._ends and self._ends[0][0] <= self._tokens:
            _, request_id = heapq.heappop(self._ends)
            if (one := self._held.pop(request_id, None)) is not None:
                done.append(self._generation(request_id, one, finish_reason=FINISH_LENGTH))
        if done:
            self._world.uses(self._name, len(self._held))
        return done

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `base.Engine.abort`."""
        self._advance()
        for request_id in request_ids:
            if (one := self._held.pop(request_id, None)) is not None:
                cut = replace(one, length=min(one.length, int(self._tokens - one.begin)))
                self._aborted.append(self._generation(request_id, cut, finish_reason=FINISH_ABORT))
        self._world.uses(self._name, len(self._held))

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """Tokens are of this version from now on; what its tensors hold does not matter."""
        if not state:
            raise EngineError("a state has tensors")
        self._advance()
        self._version = version
        self._served = [*self._served[-_VERSIONS:], (self._tokens, version)]

    def close(self) -> None:
        """See `base.Engine.close`."""
        self._held.clear()
        self._world.closed(self._name)

    def _advance(self) -> None:
        now_s, speed = self._world.now_s(), self._world.tokens_s
        self._tokens += (now_s - self._at_s) * self._speed
        self._at_s, self._speed = now_s, speed

    def _generation(self, request_id: str, one: _Sequence, *, finish_reason: str) -> Generation:
        return Generation(
            request_id=request_id,
            tokens=np.full(one.length, FIRST_TOKEN, dtype=np.int32),
            text="1",
            logprobs=np.zeros(one.length, dtype=np.float32),
            logprobs_kind=PROCESSED,
            version_runs=self._runs(one),
            finish_reason=finish_reason,
        )

    def _runs(self, one: _Sequence) -> tuple[VersionRun, ...]:
        """Versions that were served while it was made."""
        begins = [max(0, min(one.length, round(at - one.begin))) for at, _ in self._served]
        ends = [*begins[1:], one.length]
        return tuple(
            VersionRun(num_tokens=end - begin, version=version)
            for (_, version), begin, end in zip(self._served, begins, ends, strict=True)
            if end > begin
        )
