"""Settings of a prompt source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.settings import PositiveInt, Section

Config: TypeAlias = dict[str, JsonValue]
Weight: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PlainSource(Section):
    """Which prompts, in which form and how often."""

    kind: Literal["jsonl", "reasoning_gym", "plugin", "mix"] = Field(
        default="jsonl",
        description="jsonl: files; reasoning_gym: a procedural task; plugin: `plugin` below; mix: several of these.",
    )
    files: tuple[Path, ...] = Field(
        default=(),
        description="jsonl: files of JSON objects with question (or prompt, messages, token_ids) and answer; other "
        "keys go to the metadata.",
    )
    task: str = Field(default="", description="reasoning_gym: name of the task, e.g. chain_sum.")
    plugin: str = Field(
        default="",
        description="plugin: entry point of group rlweave.sources, module:attr or file.py:attr; called with seed and "
        "`config`, gives a sequence of objects like the lines of a JSONL file.",
    )
    config: Config = Field(default_factory=dict, description="Passed to the task or plug-in as it is.")
    size: PositiveInt = Field(default=10_000, description="reasoning_gym: entries in one epoch.")
    seed: int | None = Field(
        default=None, ge=0, lt=2**31, description="Seed of the task and of the order; absent: the run's."
    )
    shuffle: bool = Field(default=True, description="Another order in every epoch.")
    epochs: int | None = Field(default=None, ge=1, description="Passes over the source; absent: without end.")
    extract: str | None = Field(
        default=None, description="Regular expression; the prompt is its first match in the question (or group 1)."
    )
    prefix: str = Field(default="", description="Put before every question.")
    suffix: str = Field(default="", description="Put after every question.")
    chat: bool = Field(default=False, description="Send questions as a user message through the chat template.")

    @field_validator("extract")
    @classmethod
    def _extract_compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _kind_has_its_field(self) -> Self:
        needed = self._needed()
        for kind, name in needed.items():
            if (kind == self.kind) != bool(getattr(self, name)):
                verb = "needs" if kind == self.kind else "does not use"
                raise ValueError(f"kind {self.kind!r} {verb} `{name}`; allowed: {needed}")
        if self.kind not in needed:
            raise ValueError(f"kind {self.kind!r} cannot be used here; allowed: {needed}")
        return self

    def _needed(self) -> dict[str, str]:
        """Kinds that are allowed, and the field that each needs."""
        return {"jsonl": "files", "reasoning_gym": "task", "plugin": "plugin"}


class MixPart(PlainSource):
    """`parts.NAME` of a mix: a source, and its weight."""

    weight: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="Share of the prompts, relative to the other parts'."
    )


class CurriculumStage(Section):
    """One of `curriculum` of a mix: weights until something is reached. The last one stays."""

    weights: dict[str, Weight] = Field(description="Weight by part; parts left out have none.")
    until_step: int | None = Field(
        default=None, ge=1, description="Optimizer step whose prompts come from the next stage."
    )
    until_reward: float | None = Field(
        default=None, allow_inf_nan=False, description="Mean reward of this stage's groups at which the next begins."
    )


class SourceSettings(PlainSource):
    """Which prompts, in which form and how often; or several such sources, mixed."""

    parts: dict[str, MixPart] = Field(default_factory=dict, description="mix: the sources by name.")
    curriculum: tuple[CurriculumStage, ...] = Field(
        default=(), description="mix: other weights as the run goes on; absent: those of the parts throughout."
    )
    reward_groups: PositiveInt = Field(
        default=64, description="mix: groups, trained or without a signal, that the mean of until_reward is over."
    )

    @property
    def stages(self) -> tuple[CurriculumStage, ...]:
        """The curriculum; of one stage where there is none."""
        if self.curriculum:
            return self.curriculum
        return (CurriculumStage(weights={name: part.weight for name, part in self.parts.items()}),)

    @model_validator(mode="after")
    def _curriculum_fits(self) -> Self:
        if self.curriculum and self.kind != "mix":
            raise ValueError(f"kind {self.kind!r} does not use `curriculum`")
        for number, stage in enumerate(self.stages if self.kind == "mix" else ()):
            unknown = sorted(stage.weights.keys() - self.parts.keys())
            if unknown:
                raise ValueError(f"stage {number} weighs {unknown[0]!r}; there are the parts {', '.join(self.parts)}")
            if not any(stage.weights.values()):
                raise ValueError(f"stage {number} has no weight above 0, so nothing could be drawn")
            is_last = number == len(self.stages) - 1
            if is_last != (stage.until_step is None and stage.until_reward is None):
                word = "the last one, so nothing follows it" if is_last else "not the last one, so it must end"
                raise ValueError(f"stage {number} is {word}: until_step and until_reward")
        return self

    def _needed(self) -> dict[str, str]:
        return {**super()._needed(), "mix": "parts"}
