"""Settings of a prompt source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.settings import PositiveInt, Section

Config: TypeAlias = dict[str, JsonValue]


class SourceSettings(Section):
    """Which prompts, in which form and how often."""

    kind: Literal["jsonl", "reasoning_gym", "plugin"] = Field(
        default="jsonl", description="jsonl: files; reasoning_gym: a procedural task; plugin: `plugin` below."
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
    def _kind_has_its_field(self) -> SourceSettings:
        needed = {"jsonl": "files", "reasoning_gym": "task", "plugin": "plugin"}
        for kind, name in needed.items():
            if (kind == self.kind) != bool(getattr(self, name)):
                verb = "needs" if kind == self.kind else "does not use"
                raise ValueError(f"kind {self.kind!r} {verb} `{name}`; allowed: {needed}")
        return self
