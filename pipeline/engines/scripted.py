"""An engine without a model: each token it emits is the step of the version whose weights it holds.

Role: contract tests and the simulator: a wrong version stamp shows as a token that differs from it.
Data in: requests and states with one tensor, `STEP_TENSOR`; data out: generations.
Invariants: see `base.Engine`. The emitted token is read from the loaded tensor, the stamp from the version label: two
independent ways, so that they can be compared.
Failure: `EngineError`, as every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_LENGTH,
    EngineState,
    Generation,
    GenerationRequest,
    PromptTokens,
    StateTensor,
    TokenArray,
    kind_of_logprobs,
    made_tokens,
    version_runs,
)
from pipeline.engines.checks import (
    check_one_form,
    check_prompt_length,
    check_ready,
    check_requests,
    check_state,
    unpack_prompt_tokens,
)
from schemas.errors import EngineError
from schemas.records import PromptGroup, SamplingParams, Version

STEP_TENSOR = "step"
VOCAB_SIZE = 2**31 - 1


def scripted_state(step: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The weights of a scripted engine: one int64 of shape (1,)."""
    return {STEP_TENSOR: np.array([step], dtype=np.int64)}


@dataclass(kw_only=True)
class _Sequence:
    request: GenerationRequest
    limit: int  # of new tokens
    tokens: list[int] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)


class ScriptedEngine:
    """See `base.Engine`. Prompts are encoded as UTF-8 bytes; every completion runs to its length.

    Args:
        length: tokens of a request's whole completion, at most `max_tokens`; absent: that.
    """

    def __init__(
        self,
        *,
        max_concurrent_sequences: int = 512,
        context_tokens: int = 1024,
        tokens_per_step: int = 1,
        length: Callable[[GenerationRequest], int] = lambda request: request.sampling.max_tokens,
    ) -> None:
        self._max_concurrent_sequences = max_concurrent_sequences
        self._context_tokens = context_tokens
        self._length = length
        self.tokens_per_step = tokens_per_step  # may be changed at any time
        self._weights = scripted_state(0)
        self._version: Version | None = None
        self._state = EngineState.COLD
        self._closed = False
        self._held: dict[str, _Sequence] = {}
        self._aborted: list[Generation] = []

    @property
    def state(self) -> EngineState:
        """Where the engine is between its start and serving."""
        return self._state

    @property
    def version(self) -> Version | None:
        """The version served, whole and checked."""
        return self._version

    @property
    def num_running(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._held) + len(self._aborted)

    @property
    def num_free_slots(self) -> int:
        """How many more requests `submit` takes now."""
        return self._max_concurrent_sequences - self.num_running

    @property
    def hands_over(self) -> bool:
        """See `base.Continuing`."""
        return True

    def continues(self, sampling: SamplingParams, *, logprobs_kind: str) -> bool:
        """See `base.Continuing`."""
        return logprobs_kind == kind_of_logprobs(sampling)

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """See `base.Engine.encode_prompt`. A chat is rendered as one line per turn."""
        check_one_form(group)
        if group.token_ids is not None:
            tokens = unpack_prompt_tokens(group.token_ids)
            text = " ".join(str(token) for token in tokens)
        else:
            text = group.text if group.text is not None else ""
            if group.messages is not None:
                text = "".join(f"{message.content}\n" for message in group.messages)
            tokens = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        check_prompt_length(group, tokens, context_tokens=self._context_tokens)
        return PromptTokens(text=text, tokens=tokens)

    @property
    def context_tokens(self) -> int:
        """See `base.Conversing`."""
        return self._context_tokens

    def encode_text(self, text: str) -> TokenArray:
        """See `base.Conversing`."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `base.Engine.submit`."""
        check_ready(self._state, closed=self._closed)
        held = {*self._held, *(generation.request_id for generation in self._aborted)}
        check_requests(
            requests,
            held=held,
            num_free_slots=self.num_free_slots,
            context_tokens=self._context_tokens,
            vocab_size=VOCAB_SIZE,
        )
        for request in requests:
            length = min(self._length(request), request.sampling.max_tokens) - request.num_made
            limit = min(length, self._context_tokens - len(request.prompt_tokens))
            self._held[request.request_id] = _Sequence(request=request, limit=limit)

    def step(self) -> list[Generation]:
        """See `base.Engine.step`: up to `tokens_per_step` tokens per held sequence."""
        check_ready(self._state, closed=self._closed)
        version = self._version
        if version is None:
            raise EngineError("the engine serves no version")
        done, self._aborted = self._aborted, []
        token = int(self._weights[STEP_TENSOR][0])
        for sequence in list(self._held.values()):
            num_new = min(self.tokens_per_step, sequence.limit - len(sequence.tokens))
            sequence.tokens += [token] * num_new
            sequence.versions += [version] * num_new
            if len(sequence.tokens) == sequence.limit:
                done.append(_end(sequence, FINISH_LENGTH))
                del self._held[sequence.request.request_id]
        return done

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `base.Engine.abort`."""
        for request_id in request_ids:
            sequence = self._held.pop(request_id, None)
            if sequence is not None:
                self._aborted.append(_end(sequence, FINISH_ABORT))

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """See `base.Engine.load`."""
        if self._closed:
            raise EngineError("the engine is closed and takes no more weights")
        check_state(self._weights, state, ties=())
        self._weights = {STEP_TENSOR: np.array(state[STEP_TENSOR], dtype=np.int64)}
        self._version = version
        self._state = EngineState.SERVING

    def close(self) -> None:
        """See `base.Engine.close`."""
        self._closed = True
        self._state = EngineState.COLD
        self._version = None
        self._held.clear()
        self._aborted.clear()


def _end(sequence: _Sequence, finish_reason: str) -> Generation:
    return Generation(
        request_id=sequence.request.request_id,
        tokens=np.array(sequence.tokens, dtype=np.int32),
        text=" ".join(str(token) for token in (*made_tokens(sequence.request).tolist(), *sequence.tokens)),
        logprobs=np.zeros(len(sequence.tokens), dtype=np.float32),
        logprobs_kind=kind_of_logprobs(sequence.request.sampling),
        version_runs=version_runs(sequence.versions),
        finish_reason=finish_reason,
    )
