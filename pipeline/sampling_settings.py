"""How completions are drawn, as a run file says it: part of `[prompts]` and of each `[evaluation.NAME]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from pipeline.settings import PositiveInt, Section
from schemas.records import SamplingParams
from schemas.validation import TEMPERATURES, is_temperature

StopString = Annotated[str, Field(min_length=1)]  # an empty one would match everywhere


class SamplingSection(Section):
    """The settings of a draw."""

    max_tokens: PositiveInt = Field(default=16, description="Most completion tokens.")
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="0: greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus; 1: off.")
    top_k: int = Field(default=0, ge=0, description="Most likely tokens kept; 0: off.")
    stop: tuple[StopString, ...] = Field(default=(), description="A completion ends before the first of these strings.")

    @field_validator("temperature")
    @classmethod
    def _temperature_is_usable(cls, value: float) -> float:
        if not is_temperature(value):
            raise ValueError(f"allowed are {TEMPERATURES}")
        return value

    @property
    def sampling(self) -> SamplingParams:
        """How the engines are to sample."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=self.stop,
        )
