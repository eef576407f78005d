"""vLLM as an inference engine of a rollout producer.

Role: the engine protocol over a vLLM whose core runs in a process of its own.
Data in: requests and weight states; data out: generations, stamped by vLLM with the version that made each token.
Invariants: see `base.Engine`. Requests are handed over by `step`, which then waits a little for ended ones; vLLM goes
on generating between two steps. A state is checked and staged while vLLM generates; the pause covers only the load.
The state served is kept beside vLLM, so that a load that fails half-way is undone.
Failure: `EngineError`. A vLLM that died, or hangs in a load, is started anew by the next `load`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from pipeline.engines.base import (
    EngineState,
    Generation,
    GenerationRequest,
    PromptTokens,
    StateTensor,
    TokenArray,
    kind_of_logprobs,
)
from pipeline.engines.checks import check_ready, check_requests, check_state
from pipeline.engines.live_weights import as_tensor
from pipeline.engines.pressure import EnginePressure, pressure_of
from pipeline.engines.prompts import encode_group, encode_text
from pipeline.engines.randomness import seeds_of
from pipeline.engines.vllm.exchange import EndedRequest, NewRequest, SwapRefused, VllmHost
from pipeline.engines.vllm.facts import ModelFacts
from pipeline.engines.vllm.results import generations, not_begun
from pipeline.engines.vllm.sealed import PRINTS_PREFIX, SealedState, seal
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.engines.vllm.verifying import prints_of
from pipeline.weights.arrays import same_content
from schemas.errors import EngineError
from schemas.records import PromptGroup, SamplingParams, Version

RELOAD = "load a whole version again"
LOWEST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this


class VllmEngine:
    """See `base.Engine`.

    Args:
        facts: of the model's directory.
        start_host: starts a vLLM over the same directory.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        start_host: Callable[[], VllmHost],
        settings: VllmSettings,
        max_sequences: int,
    ) -> None:
        self._facts = facts
        self._start_host = start_host
        self._settings = settings
        self._max_sequences = max_sequences
        self._host = start_host()
        self._version: Version | None = None
        self._state = EngineState.COLD
        self._closed = False
        self._prefix, self._serial = secrets.token_hex(4), 0  # of keys; unique in this vLLM
        self._held: dict[str, GenerationRequest] = {}  # by key: handed over
        self._waiting: list[GenerationRequest] = []
        self._aborted: list[GenerationRequest] = []
        self._labels: dict[str, Version] = {}
        self._served: SealedState | None = None
        self.num_cached_tokens = 0  # prompt tokens that came from the prefix cache, in all

    @property
    def state(self) -> EngineState:
        """Where the engine is between its start and serving."""
        return self._state

    @property
    def version(self) -> Version | None:
        """The version served, whole and checked."""
        return self._version

    @property
    def pause_s(self) -> float:
        """How long generation stood still in the last load."""
        return self._host.pause_s

    @property
    def pressure(self) -> EnginePressure | None:
        """What vLLM says of its load."""
        return pressure_of(self._host)

    @property
    def num_running(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._held) + len(self._waiting) + len(self._aborted)

    @property
    def num_free_slots(self) -> int:
        """How many more requests `submit` takes now."""
        return self._max_sequences - self.num_running

    @property
    def hands_over(self) -> bool:
        """See `base.Continuing`."""
        return True

    def continues(self, sampling: SamplingParams, *, logprobs_kind: str) -> bool:
        """See `base.Continuing`."""
        return logprobs_kind == kind_of_logprobs(sampling)

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """See `base.Engine.encode_prompt`."""
        facts = self._facts
        return encode_group(facts.tokenizer, group, context_tokens=facts.context_tokens, vocab_size=facts.vocab_size)

    @property
    def context_tokens(self) -> int:
        """See `base.Conversing`."""
        return self._facts.context_tokens

    def encode_text(self, text: str) -> TokenArray:
        """See `base.Conversing`."""
        return encode_text(self._facts.tokenizer, text)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `base.Engine.submit`."""
        check_ready(self._state, closed=self._closed)
        ids = {request.request_id for request in (*self._held.values(), *self._waiting, *self._aborted)}
        check_requests(
            requests,
            held=ids,
            num_free_slots=self.num_free_slots,
            context_tokens=self._facts.context_tokens,
            vocab_size=self._facts.vocab_size,
        )
        for sampling in {request.sampling for request in requests}:
            if 0 < sampling.temperature < LOWEST_TEMPERATURE:
                raise EngineError(
                    f"sampling has temperature {sampling.temperature}; vLLM takes 0 (greedy) or at least "
                    f"{LOWEST_TEMPERATURE}; no request was taken"
                )
        self._waiting.extend(requests)

    def step(self) -> list[Generation]:
        """Hand over what was submitted and return what has ended; waits at most `step_wait_s` for the first."""
        if self._version is None and self.num_running:
            raise self._fail("the weights may be a mix of two versions")
        check_ready(self._state, closed=self._closed)
        self._hand_over()
        done = [not_begun(request) for request in self._aborted]
        self._aborted = []
        wait_s = self._settings.step_wait_s if self._held and not done else 0.0
        try:
            taken = [(self._held.pop(end.key), end) for end in self._take(wait_s)]
            done.extend(generations(taken, endings=self._facts.endings, labels=self._labels))
        except EngineError as error:
            raise self._fail(error.message) from error
        self.num_cached_tokens += sum(end.num_cached_tokens for _, end in taken)
        return done

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `base.Engine.abort`."""
        wanted = set(request_ids)
        self._aborted.extend(request for request in self._waiting if request.request_id in wanted)
        self._waiting = [request for request in self._waiting if request.request_id not in wanted]
        keys = [key for key, request in self._held.items() if request.request_id in wanted]
        if keys:
            self._host.abort(keys)

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """See `base.Engine.load`; vLLM generates on until the state is staged.

        What becomes of requests in flight is the setting `on_swap`.
        """
        if self._closed:
            raise EngineError("the engine is closed and takes no more weights")
        if self._host.dead:
            self._start_again()
        before, self._state = self._state, EngineState.STAGING
        try:
            check_state(self._facts.weights, state, ties=self._facts.ties)
            staged = self._seal(state, version=version)
        except EngineError:
            self._state = before
            raise
        self._state = EngineState.VERIFIED
        self._labels[str(version)] = version
        try:
            self._swap(staged, version=version)
        except SwapRefused:
            self._state = before
            raise
        except EngineError as error:
            raise self._undo(error, failed=version) from error
        self._served, self._version, self._state = staged, version, EngineState.SERVING

    def close(self) -> None:
        """See `base.Engine.close`."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        self._version, self._served, self._state = None, None, EngineState.COLD
        self._host.close()

    def _hand_over(self) -> None:
        if not self._waiting:
            return
        seeds = (seeds_of(self._waiting) >> 1).tolist()
        handed: list[NewRequest] = []
        for request, seed in zip(self._waiting, seeds, strict=True):
            self._serial += 1
            key = f"{self._prefix}-{self._serial}"
            self._held[key] = request
            handed.append(self._new_request(request, key=key, seed=seed))
        self._waiting = []
        self._host.submit(handed)

    def _new_request(self, request: GenerationRequest, *, key: str, seed: int) -> NewRequest:
        room = self._facts.context_tokens - len(request.prompt_tokens)
        return NewRequest(
            key=key,
            prompt_tokens=[int(token) for token in request.prompt_tokens],
            sampling=request.sampling,
            max_tokens=min(request.sampling.max_tokens - request.num_made, room),
            seed=seed,
            stop_token_ids=list(self._facts.eos_token_ids),
        )

    def _take(self, wait_s: float) -> list[EndedRequest]:
        """What has ended, without what was given up before."""
        return [end for end in self._host.take(wait_s=wait_s) if end.key in self._held]

    def _seal(self, state: Mapping[str, StateTensor], *, version: Version) -> SealedState:
        own = {name: as_tensor(name, value) for name, value in state.items()}
        for alias, owner in self._facts.ties.items():
            tied = own.pop(alias, None)
            if tied is not None and not same_content(tied, own[owner]):
                raise EngineError(
                    f"{alias} is tied to {owner} in this model and the state gives them different values; the old "
                    "version is still served",
                    hint=f"leave {alias} out, or untie the model",
                )
        matrices = {name: tensor for name, tensor in own.items() if tensor.ndim == 2 and tensor.is_floating_point()}
        checked = matrices if self._settings.verify else {}
        prints = {f"{PRINTS_PREFIX}{name}": prints_of(tensor) for name, tensor in checked.items()}
        return seal({**own, **prints}, name=str(version))

    def _swap(self, staged: SealedState, *, version: Version) -> None:
        self._host.swap(staged.path, label=str(version), ties=self._facts.ties)

    def _undo(self, error: EngineError, *, failed: Version) -> EngineError:
        """The load failed half-way: put the old state back, or quarantine. Gives what to raise."""
        if self._put_back():
            self._state = EngineState.SERVING
            return EngineError(
                f"version {failed} was not loaded: {error.message}; {self._version} was put back, the old version is "
                "still served",
                hint=error.hint,
            )
        self._state, self._version = EngineState.QUARANTINED, None
        return EngineError(f"loading {failed} failed: {error.message}; the engine is quarantined", hint=RELOAD)

    def _put_back(self) -> bool:
        served, old = self._served, self._version
        if served is None or old is None or self._host.dead:
            return False
        try:
            self._swap(served, version=old)
        except EngineError:
            return False
        return True

    def _start_again(self) -> None:
        """Start another vLLM in place of a dead one, cold; what that one held begins anew there."""
        self._state, self._version = EngineState.COLD, None
        with suppress(EngineError):
            self._host.close()
        self._host = self._start_host()
        self._waiting = [*self._held.values(), *self._waiting]
        self._held.clear()

    def _fail(self, what: str) -> EngineError:
        num_lost = self.num_running
        self._host.abort(list(self._held))
        self._forget()
        self._state, self._version = EngineState.QUARANTINED, None
        return EngineError(f"{what}; {num_lost} requests are lost and the engine is quarantined", hint=RELOAD)

    def _forget(self) -> None:
        self._held.clear()
        self._waiting, self._aborted = [], []
