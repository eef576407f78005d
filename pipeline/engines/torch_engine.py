"""An inference engine over any `transformers` causal language model, on CPU or CUDA.

Role: batched sampling with a KV cache and an in-place weight swap, in the rollout producer's own process.
Data in: requests and weight states; data out: generations, stamped with the version that made each token.
Invariants: see `base.Engine`. Nothing computed with old weights outlives a swap, except the cache of requests in
flight, which "keep" (promise 10) means to keep.
Failure: `EngineError`; a failure inside the model or the copy quarantines the engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.engines.base import (
    EngineState,
    Generation,
    GenerationRequest,
    PromptTokens,
    StateTensor,
    TokenArray,
    kind_of_logprobs,
)
from pipeline.engines.checks import check_ready, check_requests
from pipeline.engines.cohort import Cohort
from pipeline.engines.endings import Endings
from pipeline.engines.forward import CausalForward
from pipeline.engines.limits import context_tokens, embedding_rows, split_prefill
from pipeline.engines.live_weights import LiveWeights
from pipeline.engines.model_dir import load_model, load_tokenizer
from pipeline.engines.pressure import EnginePressure
from pipeline.engines.prompts import encode_group, encode_text
from pipeline.engines.settings import TorchEngineSettings
from schemas.errors import EngineError
from schemas.records import PromptGroup, SamplingParams, Version

LESS_MEMORY = "if memory ran out, lower max_concurrent_sequences or max_prefill_tokens; then load a whole version again"
RELOAD = "load a whole version again"


def open_torch_engine(settings: TorchEngineSettings, *, version: Version | None = None) -> TorchEngine:
    """Load a model directory into an engine.

    Args:
        settings: where the model is and how it is run.
        version: what the directory's own weights are; None leaves the engine cold until the first `load`.

    Raises:
        EngineError: the directory, device or a setting is at fault.
    """
    return TorchEngine(
        load_model(settings.model_dir, device=settings.device, dtype=settings.dtype),
        load_tokenizer(settings.model_dir),
        settings=settings,
        version=version,
    )


class TorchEngine:
    """See `base.Engine`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        settings: TorchEngineSettings,
        version: Version | None = None,
    ) -> None:
        self._context_tokens = context_tokens(model, settings)
        self._settings = settings
        self._tokenizer = tokenizer
        self._weights = LiveWeights(model)
        self._forward = CausalForward(model.train(False))
        self._endings = Endings(model, tokenizer)
        self._vocab_size = embedding_rows(model)
        self._version = version
        self._state = EngineState.COLD if version is None else EngineState.SERVING
        self._closed = False
        self._waiting: list[GenerationRequest] = []
        self._cohorts: list[Cohort] = []
        self._aborted: list[Generation] = []
        self._held: set[str] = set()
        self._num_tokens = 0  # made so far

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
        return len(self._held)

    @property
    def num_free_slots(self) -> int:
        """How many more requests `submit` takes now."""
        return self._settings.max_concurrent_sequences - len(self._held)

    @property
    def pressure(self) -> EnginePressure | None:
        """Its cache grows with the sequences, so there is no share of it to tell; it preempts none."""
        return EnginePressure(
            measured_s=time.monotonic(),
            queued=len(self._waiting),
            running=sum(cohort.num_live for cohort in self._cohorts),
            preemptions=0,
            tokens=self._num_tokens,
        )

    @property
    def hands_over(self) -> bool:
        """See `base.Continuing`."""
        return True

    def continues(self, sampling: SamplingParams, *, logprobs_kind: str) -> bool:
        """See `base.Continuing`. Draws go on too, so the result is that of one engine with the same weights."""
        return logprobs_kind == kind_of_logprobs(sampling)

    @property
    def context_tokens(self) -> int:
        """Most prompt and completion tokens of one sequence."""
        return self._context_tokens

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """See `base.Engine.encode_prompt`."""
        return encode_group(self._tokenizer, group, context_tokens=self._context_tokens, vocab_size=self._vocab_size)

    def encode_text(self, text: str) -> TokenArray:
        """See `base.Conversing`."""
        return encode_text(self._tokenizer, text)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `base.Engine.submit`. What is submitted between two steps is prefilled together."""
        check_ready(self._state, closed=self._closed)
        check_requests(
            requests,
            held=self._held,
            num_free_slots=self.num_free_slots,
            context_tokens=self._context_tokens,
            vocab_size=self._vocab_size,
        )
        self._waiting.extend(requests)
        self._held.update(request.request_id for request in requests)

    def step(self) -> list[Generation]:
        """See `base.Engine.step`: one token per held sequence, the first one included in its prefill."""
        version = self._version
        if self._held and version is None:
            raise self._fail("the weights may be a mix of two versions", hint=RELOAD)
        check_ready(self._state, closed=self._closed)
        if version is None:
            raise EngineError("the engine serves no version")
        done, self._aborted = self._aborted, []
        try:
            with torch.inference_mode():
                self._cohorts.extend(self._new_cohorts())
                for cohort in self._cohorts:
                    self._num_tokens += cohort.num_live
                    done.extend(cohort.advance(version))
        except RuntimeError as error:  # torch raises it for device, memory and kernel failures alike
            raise self._fail(f"the model failed in a step: {error}", hint=LESS_MEMORY) from error
        self._cohorts = [cohort for cohort in self._cohorts if cohort.num_live]
        self._held.difference_update(generation.request_id for generation in done)
        return done

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `base.Engine.abort`."""
        wanted = set(request_ids) & self._held
        if not wanted:
            return
        never_started = [request for request in self._waiting if request.request_id in wanted]
        self._waiting = [request for request in self._waiting if request.request_id not in wanted]
        cohorts = list(self._cohorts)
        if never_started:
            cohorts.append(self._cohort(never_started))
        for cohort in cohorts:
            self._aborted.extend(cohort.abort(wanted))
        self._cohorts = [cohort for cohort in self._cohorts if cohort.num_live]

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """See `base.Engine.load`. Tensors may be numpy arrays or torch tensors on any device."""
        if self._closed:
            raise EngineError("the engine is closed and takes no more weights")
        before = self._state
        self._state = EngineState.STAGING
        try:
            tensors = self._weights.check(state)
        except EngineError:
            self._state = before
            raise
        self._state = EngineState.VERIFIED
        try:
            self._weights.copy(tensors)
        except RuntimeError as error:
            # Requests in flight are kept: a whole load before the next step lets them go on, else that step fails.
            self._state, self._version = EngineState.QUARANTINED, None
            raise EngineError(
                f"copying version {version} failed half-way: {error}; the engine is quarantined", hint=RELOAD
            ) from error
        self._version = version
        self._state = EngineState.SERVING

    def close(self) -> None:
        """See `base.Engine.close`."""
        if self._closed:
            return
        self._forget()
        self._state = EngineState.COLD
        self._closed = True
        del self._forward, self._weights, self._endings

    def _new_cohorts(self) -> Iterator[Cohort]:
        waiting, self._waiting = self._waiting, []
        for batch in split_prefill(waiting, max_tokens=self._settings.max_prefill_tokens):
            yield self._cohort(batch)

    def _cohort(self, requests: Sequence[GenerationRequest]) -> Cohort:
        return Cohort(requests, forward=self._forward, endings=self._endings, context_tokens=self._context_tokens)

    def _fail(self, what: str, *, hint: str) -> EngineError:
        num_lost = len(self._held)
        self._state = EngineState.QUARANTINED
        self._forget()
        return EngineError(f"{what}; {num_lost} requests are lost and the engine is quarantined", hint=hint)

    def _forget(self) -> None:
        self._version = None
        self._waiting, self._cohorts, self._aborted = [], [], []
        self._held.clear()
