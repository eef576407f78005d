"""What a fault is, and what it is drawn from.

A kind says how often it is drawn, which promise of the design it tries, and what it needs of the machine. Drawing it
fixes every detail, so that one seed gives one list of faults, before anything has been started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from ops.chaos.world import World


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a draw may choose from.

    Attributes:
        programs: stage of each program, by name.
        brokers: how many.
        partitions: of a data topic.
    """

    programs: Mapping[str, str]
    brokers: int
    partitions: int

    def of(self, *stages: str) -> list[str]:
        """Programs of some stages."""
        return [name for name, stage in self.programs.items() if stage in stages]


class Fault(ABC):
    """One fault, with every detail drawn. A subclass says what happens.

    Attributes:
        hold_s: time between `inject` and `heal`.
        links: programs that must reach the brokers through a link of ours.
        clocks: programs whose clock must be one of ours.
        disks: whether small disks are needed.
    """

    hold_s = 0.0
    links: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    disks = False

    def __str__(self) -> str:
        """The details, for people and for the list of faults."""
        return ""

    @abstractmethod
    def inject(self, world: World) -> None:
        """Bring it about."""

    def heal(self, world: World) -> None:  # noqa: B027 - what is over at once needs no end
        """Undo it; also called when a run ends in the middle of it, so it must do no harm twice."""


def always(_layout: Layout) -> str | None:
    """For kinds that need nothing."""
    return None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        weight: how often it is drawn, compared with others.
        promise: what it tries, in a few words; the number is that of the design.
        draw: makes one.
        missing: why it cannot be done here; None: it can.
        quick: whether it is in the short version.
    """

    name: str
    weight: float
    promise: str
    draw: Callable[[Random, Layout], Fault]
    missing: Callable[[Layout], str | None] = always
    quick: bool = True
