"""Which faults, in which order, after which pauses: drawn from a seed before anything is started.

Invariants: the same seed, number, layout and kinds give the same list; every kind that can be done here comes once
before any comes twice as long as there are faults enough, so that a long run leaves none out.
Failure: `SettingsError` for a kind that does not exist, or when none is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ops.chaos.faults import KINDS, Fault, Kind, Layout
from ops.chaos.settings import ChaosSettings
from schemas.errors import SettingsError

_PAUSE_S = (0.2, 3.0)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One fault of the list."""

    number: int  # from 1
    kind: str
    pause_s: float  # between the recovery from the one before and this one
    fault: Fault

    def __str__(self) -> str:
        details = str(self.fault)
        return f"{self.kind}{f': {details}' if details else ''}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole list, and the kinds that are not in it."""

    faults: tuple[Planned, ...]
    not_run: dict[str, str]  # kind -> why

    @property
    def links(self) -> list[str]:
        """Programs that need a link of ours."""
        return sorted({name for planned in self.faults for name in planned.fault.links})

    @property
    def clocks(self) -> list[str]:
        """Programs that need a clock of ours."""
        return sorted({name for planned in self.faults for name in planned.fault.clocks})

    @property
    def disks(self) -> bool:
        """Whether small disks are needed."""
        return any(planned.fault.disks for planned in self.faults)


def draw_plan(settings: ChaosSettings, layout: Layout) -> Plan:
    """Draw.

    Raises:
        SettingsError: a kind does not exist, or none can be done here.
    """
    wanted = _wanted(settings)
    reasons = {kind.name: kind.missing(layout) for kind in wanted}
    able = [kind for kind in wanted if reasons[kind.name] is None]
    not_run = {name: why for name, why in reasons.items() if why is not None}
    if not able:
        why = "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        raise SettingsError(f"none of the wanted kinds of faults can be done here: {why}")
    rng = Random(f"chaos/{settings.seed}")  # noqa: S311 - repeatable, no secret
    faults = [
        Planned(number=number, kind=kind.name, pause_s=rng.uniform(*_PAUSE_S), fault=kind.draw(rng, layout))
        for number, kind in enumerate(_kinds(able, num=settings.faults, rng=rng), 1)
    ]
    return Plan(faults=tuple(faults), not_run=not_run)


def _wanted(settings: ChaosSettings) -> list[Kind]:
    names = {kind.name for kind in KINDS}
    strangers = [name for name in settings.only if name not in names]
    if strangers:
        raise SettingsError(
            f"there is no kind of fault {', '.join(strangers)}", hint=f"there are: {', '.join(sorted(names))}"
        )
    if settings.only:
        return [kind for kind in KINDS if kind.name in settings.only]
    return [kind for kind in KINDS if kind.quick or not settings.quick]


def _kinds(able: Sequence[Kind], *, num: int, rng: Random) -> list[Kind]:
    """Each once if there is room for that, the rest by weight; in random order."""
    first = list(able) if num >= len(able) else []
    drawn = [*first, *rng.choices(able, weights=[kind.weight for kind in able], k=num - len(first))]
    rng.shuffle(drawn)
    return drawn
