"""The calls into `vllm.AsyncLLM`, typed.

Role: the only module of the caller's process that imports vllm.
Data in: plain requests; data out: plain results. All coroutines run on the loop in which `open_client` ran.
Invariants: log-probabilities are those of the distribution a token was drawn from (`processed_logprobs`); sampling
defaults of the model's directory are not applied, what the caller says counts.
Failure: `EngineError` at the start; one of `VllmErrors` later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, cast

from vllm import AsyncEngineArgs
from vllm import SamplingParams as VllmSampling
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from pipeline.engines.vllm import plugin
from pipeline.engines.vllm.devices import check_kind
from pipeline.engines.vllm.exchange import EndedRequest, NewRequest
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.engines.vllm.stats import PressureLog
from schemas.errors import EngineError

# vLLM passes errors of its core on as bare exceptions with a text.
VllmErrors: tuple[type[BaseException], ...] = (Exception,)
_CLOSE_LIMIT_S = 3.0
_START_ERRORS = (OSError, ValueError, RuntimeError, TypeError, ImportError, KeyError, AttributeError, AssertionError)


class _Span(Protocol):
    version: str
    start: int
    end: int


class _Flat(Protocol):
    logprobs: list[float]


class _Completion(Protocol):
    token_ids: list[int]
    logprobs: _Flat
    finish_reason: str
    weight_versions: list[_Span] | None


class _Output(Protocol):
    outputs: list[_Completion]
    num_cached_tokens: int | None


class _Core(Protocol):
    async def pause_scheduler_async(self, *, mode: str, clear_cache: bool) -> None: ...
    async def set_weight_version_async(self, weight_version: str) -> None: ...


class _LoggerManager(Protocol):
    stat_loggers: list[object]


class Client:
    """A running AsyncLLM."""

    def __init__(self, llm: AsyncLLM, *, settings: VllmSettings) -> None:
        self._llm = llm
        self.on_swap = settings.on_swap

    @property
    def dead(self) -> bool:
        """Whether the core process has ended."""
        return bool(self._llm.errored)

    async def generate(self, request: NewRequest, *, salt: str) -> EndedRequest:
        """Run one request to its end; `salt` keys its prefix cache."""
        stream = cast(
            "AsyncIterator[_Output]",
            self._llm.generate(
                tokens_input(request.prompt_tokens, cache_salt=salt), _sampling(request), request_id=request.key
            ),
        )
        last: _Output | None = None
        async for output in stream:
            last = output
        if last is None:
            return EndedRequest(
                key=request.key, tokens=[], logprobs=[], versions=[], finish_reason="abort", num_cached_tokens=0
            )
        return _ended(request.key, last)

    async def abort(self, keys: list[str]) -> None:
        """End requests; their `generate` returns with what they have."""
        await self._llm.abort(keys)

    async def pause(self) -> None:
        """Stop after the current step. Requests stay, begin anew in the cache, or end, as `on_swap` says.

        The core is asked directly: `AsyncLLM.pause_generation` adds 20 ms to order outputs, which stamps do not need.
        """
        core = cast(_Core, self._llm.engine_core)
        mode = "abort" if self.on_swap == "abort" else "keep"
        await core.pause_scheduler_async(mode=mode, clear_cache=self.on_swap != "keep")

    async def start_update(self) -> None:
        """Begin a weight update; one that was given up before is the same as a new one, since it did nothing yet."""
        try:
            await self._llm.start_weight_update()
        except VllmErrors as error:
            if "already active" not in str(error):
                raise

    async def update(self, info: dict[str, object], *, label: str) -> None:
        """Load one whole state and stamp `label` on every later token, also when the load fails (see `relabel`).

        All three calls are sent at once, and the core takes them in order: each answer that is waited for first would
        make the pause longer, the more so the busier this loop is with what the core sent before the pause.
        """
        core = cast(_Core, self._llm.engine_core)
        answers = await asyncio.gather(
            self._llm.update_weights(WeightTransferUpdateRequest(update_info=info)),
            self._llm.finish_weight_update(),
            core.set_weight_version_async(label),
            return_exceptions=True,
        )
        for answer in answers:  # of a failed load the first one says why
            if isinstance(answer, BaseException):
                raise answer

    async def relabel(self, label: str) -> None:
        """Stamp `label` on every later token."""
        await cast(_Core, self._llm.engine_core).set_weight_version_async(label)

    async def resume(self) -> None:
        """Go on."""
        await self._llm.resume_generation()

    def close(self) -> None:
        """End vLLM's processes."""
        self._llm.shutdown(timeout=_CLOSE_LIMIT_S)


async def open_client(
    *,
    model_dir: Path,
    device: str,
    dtype: str,
    max_sequences: int,
    context_tokens: int,
    num_threads: int,
    stats: PressureLog | None = None,
    settings: VllmSettings,
) -> Client:
    """Start vLLM's core process over a model directory; `stats` is told of each of its steps.

    Raises:
        ModelUnusable: this vLLM is made for another kind of device.
        EngineError: vLLM does not serve this model here.
    """
    check_kind(device, own=current_platform.device_type)
    _environment(device=device, num_threads=num_threads, settings=settings)
    plugin.register()
    arguments = AsyncEngineArgs(
        model=str(model_dir),
        dtype=dtype,
        max_model_len=context_tokens,
        max_num_seqs=max_sequences,
        enforce_eager=settings.enforce_eager,
        num_gpu_blocks_override=settings.kv_cache_blocks,
        enable_prefix_caching=settings.prefix_caching,
        gpu_memory_utilization=settings.gpu_memory_share,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=plugin.BACKEND),
        disable_log_stats=True,
        # A prompt is prefilled whole: vLLM 0.32 on CPU dies of a seeded request whose prefill it has cut in two.
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(context_tokens, settings.max_prefill_tokens),
        distributed_executor_backend="uni",
    )
    try:
        llm = AsyncLLM.from_engine_args(arguments, stat_loggers=None if stats is None else [lambda *_: stats])
        _only(llm, stats)
        await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
    except _START_ERRORS as error:
        raise EngineError(
            f"vLLM cannot serve {model_dir}: {type(error).__name__}: {error}",
            hint="its log says more (rollout.vllm.log_level); on CPU head sizes are 32, 64, 80, 96, 112, 128 and up",
        ) from error
    return Client(llm, settings=settings)


def _only(llm: AsyncLLM, stats: PressureLog | None) -> None:
    """Leave out vLLM's Prometheus metrics, which it adds to any logger: nobody asks for them, and each step pays."""
    manager = cast("_LoggerManager | None", llm.logger_manager)
    if stats is not None and manager is not None:
        manager.stat_loggers[1:] = []  # ours is the first


def _environment(*, device: str, num_threads: int, settings: VllmSettings) -> None:
    """What vLLM reads from the environment, for this process and the core it spawns; what is set already stays."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": settings.log_level,
        "OMP_NUM_THREADS": str(num_threads),
        # Compiling one ranking function that we do not use takes longer than the rest of the start.
        "TORCH_COMPILE_DISABLE": "1" if settings.enforce_eager else "0",
    }
    if device == "cpu":
        wanted["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_cache_gib)
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # engines and stages share the cores
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process for core and worker, not two
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def _sampling(request: NewRequest) -> VllmSampling:
    wanted = request.sampling
    return VllmSampling(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        seed=request.seed,
        max_tokens=request.max_tokens,
        stop=list(wanted.stop),
        stop_token_ids=request.stop_token_ids,
        ignore_eos=True,  # the end tokens are all in stop_token_ids
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=bool(wanted.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def _ended(key: str, output: _Output) -> EndedRequest:
    completion = output.outputs[0]
    spans = completion.weight_versions if completion.weight_versions is not None else []
    num_cached = output.num_cached_tokens
    return EndedRequest(
        key=key,
        tokens=list(completion.token_ids),
        logprobs=list(completion.logprobs.logprobs),
        versions=[(span.version, span.end - span.start) for span in spans],
        finish_reason=completion.finish_reason,
        num_cached_tokens=0 if num_cached is None else num_cached,
    )
