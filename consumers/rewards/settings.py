"""`[rewards.NAME]`: one reward consumer.

Role: what the run file says of a reward.
Invariants: frozen; weight 0 means shadow: scored and written, never trained on.
Failure: pydantic's, as in `pipeline.settings`; `check_reward_name` raises `SettingsError`.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.reward_rule import RewardTerm
from pipeline.settings import PositiveInt, Replicated, Seconds
from schemas.errors import SettingsError

OptionValue = str | int | float | bool | list[str] | list[int] | list[float]
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


class RewardSettings(Replicated):
    """One reward: which plug-in, with which weight, and how patient with it."""

    plugin: str = Field(
        description="A built-in reward (exact_match, number_match, regex, format, math_verify, reasoning_gym, "
        "environment, length_penalty, repetition_penalty, neural, llm_judge, remote_http), module:attr or "
        "path/to/file.py:attr."
    )
    weight: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Factor in the training signal; 0 and no gate: shadow, never trained on.",
    )
    gate_above: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Makes it a gate: unless its value is greater, rewards that are no gates count with weight 0. "
        "Its own weight counts in either case, and may be 0.",
    )
    required: bool = Field(
        default=True, description="false: samples are trained without it where it is missing, its group without it."
    )
    missing: Literal["wait", "fail", "leave_out"] = Field(
        default="wait",
        description="What is done where it has no value. wait: it is waited for until the group's deadline; then, or "
        "at once when scoring failed, a required one ends the sample and an optional one is left out of its group. "
        "fail: a required one ends the whole group, whatever run.min_group_members says. leave_out: an optional one "
        "is not waited for once all others are there.",
    )
    options: dict[str, OptionValue] = Field(default_factory=dict, description="Keyword arguments for the plug-in.")
    group: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="Consumer group id; absent: rlweave.<run>.reward.<name>.",
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest", description="Where to begin when the group has committed nothing."
    )
    retries: int = Field(default=6, ge=0, le=100, description="Further tries after a transient error.")
    retry_backoff_s: Seconds = Field(default=0.5, description="Wait before the first further try; doubles each time.")
    retry_backoff_max_s: Seconds = Field(default=15.0, description="Longest wait between two tries.")
    breaker_failures: float = Field(
        default=0.5, gt=0, le=1, description="Share of failed samples in the window that opens the breaker."
    )
    breaker_window: PositiveInt = Field(default=20, description="Samples the breaker looks back on.")
    breaker_pause_s: Seconds = Field(default=10.0, description="Time the breaker stays open before one try.")
    max_in_flight: PositiveInt = Field(default=256, description="Most samples taken and not finished.")
    isolation: Literal["auto", "process", "thread"] = Field(
        default="auto",
        description="process: the plug-in runs in processes of its own, which are killed when a call takes too long. "
        "thread: in this process, where a call that never returns keeps its thread. auto: built-in plug-ins in "
        "threads (but regex, math_verify and neural), all others in processes.",
    )
    num_workers: PositiveInt = Field(
        default=4,
        description="Processes or threads that score, started when there is work; each process loads the "
        "plug-in. An async plug-in scores max_in_flight samples at a time with them.",
    )
    held_workers: int = Field(
        default=16,
        ge=0,
        le=1024,
        description="Most further processes started while calls that take much longer than others hold theirs, "
        "so that the other samples go on; 0: none. None are for a plug-in that states max_workers.",
    )
    timeout_s: Seconds = Field(
        default=120.0, description="Longest time of a call of the plug-in; threads without async cannot keep to it."
    )
    timeout_retries: int = Field(
        default=1, ge=0, le=10, description="Further tries of a sample whose call took too long or killed its process."
    )
    load_timeout_s: Seconds = Field(default=300.0, description="Longest time a process may take to load the plug-in.")
    batch_size: PositiveInt = Field(default=32, description="Most samples given to score_batch at a time.")
    stuck_after_s: Seconds = Field(
        default=60.0, description="A sample unfinished for longer than this is named in an event."
    )

    @model_validator(mode="after")
    def _term_can_work(self) -> Self:
        if problem := self.term.problem():
            raise ValueError(problem)
        return self

    @property
    def term(self) -> RewardTerm:
        """What it is to the training signal."""
        return RewardTerm(weight=self.weight, gate_above=self.gate_above, required=self.required, missing=self.missing)

    @property
    def is_shadow(self) -> bool:
        """True when its scores enter no training signal."""
        return self.term.is_shadow


def check_reward_name(name: str) -> None:
    """Accept what may stand in a group id and a label.

    Raises:
        SettingsError: with the name seen.
    """
    if not _NAME.match(name):
        raise SettingsError(
            f"reward name {name!r} is not allowed",
            hint="use 1 to 63 lower-case letters, digits, '-' or '_', beginning with a letter or digit",
        )


def group_id(run: str, name: str, *, settings: RewardSettings) -> str:
    """The consumer group of a reward: built from the run, the stage and the reward's name unless given."""
    return settings.group if settings.group is not None else f"rlweave.{run}.reward.{name}"
