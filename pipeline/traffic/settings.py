"""`[traffic]`: what a host may send.

Role: settings of the sender (`pipeline.traffic.sender`), until a command of the scheduler replaces them.
Invariants: frozen; every host reads the same.
"""

from __future__ import annotations

from math import isfinite
from typing import get_args

from pydantic import Field, PositiveFloat, field_validator

from pipeline.settings import Section
from pipeline.traffic.classes import BACKGROUND, GRADIENT_SYNC, PHASES, Phase, TrafficClass
from pipeline.traffic.permit import Permit, closed_for_ever, parse_key
from schemas.errors import SettingsError

_ALL_BUT_SYNC: tuple[Phase, ...] = tuple(phase for phase in get_args(Phase) if phase != GRADIENT_SYNC)


class TrafficSettings(Section):
    """`[traffic]`."""

    managed: bool = Field(
        default=True, description="Background traffic stands back for weights and gradients; false: each as it goes."
    )
    link_bytes_s: PositiveFloat | None = Field(
        default=None,
        description="What the host's link carries out; with it background gets what weights leave of it. Absent: it "
        "gets nothing while weights leave.",
    )
    floor_bytes_s: float = Field(
        default=0.0, ge=0, description="What background traffic may always send, so that it does not starve for ever."
    )
    rates: dict[str, float] = Field(
        default_factory=dict,
        description="Most bytes per second by class, or by class@phase of the learner; of samples and gradients: what "
        "is set aside for them.",
    )
    background_phases: tuple[Phase, ...] = Field(
        default=_ALL_BUT_SYNC,
        description="Phases of this host's learner in which evaluation and checkpoints may leave; gradient_sync: "
        "while its ranks sum gradients.",
    )

    @field_validator("rates")
    @classmethod
    def _rates_can_be(cls, value: dict[str, float]) -> dict[str, float]:
        for key, rate in value.items():
            try:
                parse_key(key)
            except SettingsError as error:
                raise ValueError(f"{error.message}; {error.hint}") from error
            if not (isfinite(rate) and rate >= 0):
                raise ValueError(f"{key} = {rate:g}: a rate is a number of bytes per second, 0 or more")
            if problem := closed_for_ever(key, rate):
                raise ValueError(problem)
        return value

    @property
    def permit(self) -> Permit:
        """As a permission."""
        rates: dict[tuple[TrafficClass, str], float] = {}
        for phase in PHASES[1:]:
            if phase not in self.background_phases:
                rates.update({(traffic, phase): 0.0 for traffic in BACKGROUND})
        rates.update({parse_key(key): rate for key, rate in self.rates.items()})
        return Permit(link_bytes_s=self.link_bytes_s, floor_bytes_s=self.floor_bytes_s, rates=rates)
