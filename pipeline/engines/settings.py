"""Settings of the engines; no torch, so that a run file can be checked where torch is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.settings import PositiveInt, Section


class TorchEngineSettings(Section):
    """Where the model is and how it is run."""

    model_dir: Path = Field(description="Local directory written by save_pretrained; nothing is downloaded.")
    device: str = Field(default="cpu", description="cpu, cuda or cuda:<n>.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Of the served weights; must be the dtype in which the learner publishes."
    )
    max_concurrent_sequences: PositiveInt = Field(
        default=512, description="Most sequences held at once; memory is about this times the cache of one."
    )
    max_context_tokens: int | None = Field(
        default=None, ge=2, description="Most tokens of prompt and completion; absent: what the model was made for."
    )
    max_prefill_tokens: PositiveInt = Field(
        default=65_536, description="Distinct prompt tokens, padding included, of one prefill; bounds its memory."
    )
