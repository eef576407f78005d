"""Settings of low-rank adapters: section `[learner.lora]` of the run file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import PositiveInt, Section
from pipeline.weights.scale import Scale

ALL_LINEAR: Literal["all-linear"] = "all-linear"
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]


class LoraSettings(Section):
    """`[learner.lora]`: only adapters are trained and published (arXiv 2106.09685). There is no dropout."""

    rank: PositiveInt = Field(default=16, description="Rows of A and columns of B.")
    alpha: float = Field(
        default=32.0,
        gt=0,
        allow_inf_nan=False,
        description="Adapters are scaled by alpha / rank.",
    )
    target_modules: Literal["all-linear"] | tuple[ModuleName, ...] = Field(
        default=ALL_LINEAR,
        description="Last names of the linear layers that get adapters, or all of them but the one that makes logits.",
    )

    @property
    def scale(self) -> Scale:
        """For merging."""
        return Scale(rank=self.rank, alpha=self.alpha)
