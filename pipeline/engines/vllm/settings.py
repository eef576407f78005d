"""Settings of the vLLM engine: section `[rollout.vllm]`. No torch and no vllm here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.settings import PositiveInt, Seconds, Section


class VllmSettings(Section):
    """`[rollout.vllm]`: how vLLM is run."""

    kv_cache_gib: PositiveInt = Field(default=1, description="Memory of the KV cache on CPU, in GiB.")
    kv_cache_blocks: PositiveInt | None = Field(
        default=None, description="Blocks of the KV cache; absent: what its memory holds."
    )
    gpu_memory_share: float = Field(
        default=0.9, gt=0, le=1, description="Share of a GPU's memory that vLLM takes; not used on CPU."
    )
    enforce_eager: bool = Field(
        default=True, description="Run the model without compiling it: a faster start, fewer tokens per second."
    )
    max_context_tokens: int | None = Field(
        default=None, ge=2, description="Most tokens of prompt and completion; absent: what the model was made for."
    )
    max_prefill_tokens: PositiveInt = Field(
        default=8192, description="Most tokens of one step; at least one whole context is always taken."
    )
    prefix_caching: bool = Field(default=True, description="Share the cache of equal prompt beginnings.")
    on_swap: Literal["keep", "recompute", "abort"] = Field(
        default="keep",
        description="Requests in flight at a swap: keep their cache, compute it again with the new weights, or end.",
    )
    pause_lease_s: Seconds = Field(
        default=60.0, description="Longest pause of a swap; after it generation resumes, or the engine is quarantined."
    )
    start_limit_s: Seconds = Field(default=300.0, description="Longest start of vLLM.")
    step_wait_s: Seconds = Field(default=0.02, description="Longest wait of one step for a finished sequence.")
    verify: bool = Field(
        default=True,
        description="After a load, compare every parameter with the published tensors; off: only names and shapes.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="ERROR", description="Of vLLM's own log.")
