"""Settings of a run in several phases: `[[phases]]` of the run file.

Role: a phase is a stop rule and what it sets otherwise than the run file.
Invariants: a phase begins where the one before ended; whatever rule is met first ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, JsonValue, model_validator

from pipeline.settings import PositiveInt, Seconds, Section


class StopRule(Section):
    """`phases.until`: when a phase is over."""

    steps: int | None = Field(
        default=None, ge=0, description="Optimizer steps of this phase; 0: none, which is cloning only, as first phase."
    )
    reward: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Mean reward over reward_steps steps, of samples trained or dropped as no_signal.",
    )
    reward_steps: PositiveInt = Field(default=10, description="Steps that the mean of reward is over.")
    tokens: PositiveInt | None = Field(default=None, description="Completion tokens trained on in this phase.")
    time_s: Seconds | None = Field(default=None, description="Time for which the phase was at work, over all starts.")

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if self.steps is None and self.reward is None and self.tokens is None and self.time_s is None:
            raise ValueError("no rule is given, so the phase would never end; give steps, reward, tokens or time_s")
        return self


class PhaseSettings(Section):
    """One of `[[phases]]`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$", description="Of the phase; unique in the run.")
    until: StopRule = Field(description="When it is over.")
    settings: dict[str, JsonValue] = Field(
        default_factory=dict, description="Sections of the run file that are otherwise in this phase, and only there."
    )


def merged(base: Mapping[str, JsonValue], over: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """`over` goes first, section by section; what it does not name stays."""
    found = dict(base)
    for name, value in over.items():
        before = found.get(name)
        found[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return found
