"""`[reference]`: the consumer that scores samples with a frozen reference model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.settings import PositiveInt, Replicated


class ReferenceSettings(Replicated):
    """`[reference]`: with this section, samples are trained only once the reference model has scored them."""

    path: Path | None = Field(
        default=None, description="Directory of the reference model; absent: model.path, the policy before training."
    )
    device: str | None = Field(default=None, description="cpu, cuda or cuda:<n>; absent: model.device.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Of its weights; absent: model.dtype."
    )
    threads: PositiveInt = Field(default=1, description="torch threads of each process.")
    batch_tokens: PositiveInt = Field(
        default=16_384, description="Padded tokens in one forward pass; bounds the memory of a process."
    )
    max_in_flight: PositiveInt = Field(default=256, description="Most samples taken and not written.")


def reference_group(run: str) -> str:
    """The consumer group in which the processes share the samples."""
    return f"rlweave.{run}.reference"
