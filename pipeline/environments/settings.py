"""Settings of environments: section `[environment]` of the run file; without it rollouts have one turn."""

from __future__ import annotations

from pydantic import Field

from pipeline.environments.base import OptionValue
from pipeline.settings import PositiveInt, Seconds, Section

_SHARE_OF_DEADLINE = 0.8  # the rest is for the wait before it begins, and for the reward


class EnvironmentSettings(Section):
    """`[environment]`."""

    plugin: str = Field(
        description="guess, calculator, an entry point of group rlweave.environments, module:attr or file.py:attr."
    )
    options: dict[str, OptionValue] = Field(default_factory=dict, description="Keyword arguments for the plug-in.")
    max_turns: PositiveInt = Field(default=8, description="Most turns of a trajectory.")
    max_tokens: PositiveInt = Field(
        default=4096,
        description="Most tokens after the prompt, the environment's included; prompts.max_tokens is of one turn.",
    )
    template: str = Field(
        default="{text}",
        pattern=r"^[^{}]*\{text\}[^{}]*$",
        description="What the model reads: {text} is what the environment says, around it what a chat model needs.",
    )
    call_limit_s: Seconds = Field(default=60.0, description="Longest time of one call of the environment.")
    episode_limit_s: Seconds | None = Field(
        default=None,
        description="Longest trajectory, generation and further tries included; absent: 0.8 of run.group_deadline_s, "
        "after which its group is closed without it.",
    )
    retire_s: float = Field(
        default=30.0,
        ge=0,
        allow_inf_nan=False,
        description="Time that trajectories of a process that retires have to end; then their groups begin anew in "
        "other processes.",
    )
    max_retries: int = Field(
        default=2,
        ge=0,
        le=100,
        description="Further tries of a call that asks for one; and new beginnings of a trajectory that failed.",
    )
    retry_backoff_s: Seconds = Field(default=0.5, description="Wait before the first further try; doubles each time.")
    park_after_s: float = Field(
        default=0.05,
        ge=0,
        allow_inf_nan=False,
        description="Time without an answer after which a trajectory is parked: its slot is for others.",
    )
    max_parked: PositiveInt = Field(
        default=512, description="Parked trajectories of a process from which on no prompts are taken."
    )

    def longest_s(self, group_deadline_s: float) -> float:
        """Longest trajectory of a run whose groups have so much time."""
        return _SHARE_OF_DEADLINE * group_deadline_s if self.episode_limit_s is None else self.episode_limit_s
