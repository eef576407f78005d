"""What a host may send: a standing permission, from the settings or from a command of the scheduler.

Role: input of `gate`.
Data in: `[traffic]`, or the rates of a command of kind `traffic`. Data out: `Permit`.
Keys of a command's rates: `link`, `floor`, a class, or `<class>@<phase of the learner>`, all in bytes per second; 0
closes. What a command does not name has no limit: it replaces the settings as a whole.
Invariants: frozen. A class has its own rate in a phase, else its own rate, else none.
Failure: `SettingsError` naming the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from pipeline.traffic.classes import BACKGROUND, GRADIENT_SYNC, PHASES, TrafficClass, traffic_class
from schemas.errors import SettingsError

LINK, FLOOR = "link", "floor"


@dataclass(frozen=True, kw_only=True)
class Permit:
    """See the module. The default lets background go whenever no weights leave and no gradients are summed."""

    link_bytes_s: float | None = None  # what the host's link carries out; None: not known
    floor_bytes_s: float = 0.0  # what background classes may send whatever else leaves
    rates: Mapping[tuple[TrafficClass, str], float] = field(
        default_factory=lambda: dict.fromkeys(((traffic, GRADIENT_SYNC) for traffic in BACKGROUND), 0.0)
    )  # (class, phase; "": all phases) -> bytes per second

    def rate(self, traffic: TrafficClass, *, phase: str = "") -> float | None:
        """Most bytes per second of a class while the learner is in a phase; None: no limit."""
        return self.rates.get((traffic, phase), self.rates.get((traffic, "")))

    def is_limited(self, traffic: TrafficClass) -> bool:
        """Whether the class has a rate in any phase."""
        return any(of is traffic for of, _ in self.rates)

    def set_aside(self, *, phase: str = "") -> float:
        """Bytes per second of the link for classes that others send."""
        others = (TrafficClass.SAMPLES, TrafficClass.GRADIENTS)
        return sum(rate for traffic in others if (rate := self.rate(traffic, phase=phase)) is not None)


def permit_of(rates: Mapping[str, float]) -> Permit:
    """The permission that a command of kind `traffic` gives.

    Raises:
        SettingsError: a key or a rate cannot be.
    """
    parsed: dict[tuple[TrafficClass, str], float] = {}
    for key, rate in rates.items():
        if not (isfinite(rate) and rate >= 0) or (key == LINK and rate == 0):
            raise SettingsError(
                f"traffic rate {key!r} is {rate:g}; allowed are bytes per second from 0, of a link above 0"
            )
        if problem := closed_for_ever(key, rate):
            raise SettingsError(f"traffic rate: {problem}")
        if key not in (LINK, FLOOR):
            parsed[parse_key(key)] = rate
    return Permit(link_bytes_s=rates.get(LINK), floor_bytes_s=rates.get(FLOOR, 0.0), rates=parsed)


def closed_for_ever(key: str, rate: float) -> str:
    """Why a rate of weights cannot be: no engine would ever get a version; empty: it can."""
    if key != TrafficClass.WEIGHTS or rate > 0:
        return ""
    return f"{key} = 0 lets no weights leave, so no engine would ever serve another version; leave it out for no limit"


def parse_key(key: str) -> tuple[TrafficClass, str]:
    """`class` or `class@phase`.

    Raises:
        SettingsError: there is no such class or phase.
    """
    name, at, phase = key.partition("@")
    if at and phase not in PHASES[1:]:
        raise SettingsError(
            f"traffic rate {key[:80]!r} is of an unknown phase", hint=f"phases are {', '.join(PHASES[1:])}"
        )
    return traffic_class(name), phase
