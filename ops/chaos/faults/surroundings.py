"""What surrounds a process: its network, its disk, its clock."""

from __future__ import annotations

from random import Random

from ops.chaos import clocks, disks
from ops.chaos.faults.base import Fault, Kind, Layout
from ops.chaos.world import World

_STAGES = ("learner", "rollout", "reward", "prompts", "scheduler")  # with a way to the brokers that matters
_NETWORK = "11, 12: waits have ends; nothing is lost, and what is sent again counts once"
_DAY_S = 86_400
_STEPS_S = (3_700, -3_700, 40 * _DAY_S, -40 * _DAY_S, 400 * _DAY_S)


class LinkCut(Fault):
    """Connections to the brokers break, and new ones are refused."""

    def __init__(self, name: str, *, hold_s: float) -> None:
        self._name = name
        self.hold_s = hold_s
        self.links = (name,)

    def __str__(self) -> str:
        return f"{self._name} for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Cut."""
        world.links[self._name].cut()

    def heal(self, world: World) -> None:
        """As before."""
        world.links[self._name].heal()


class LinkSilent(LinkCut):
    """Connections to the brokers stay, and carry nothing."""

    def inject(self, world: World) -> None:
        """Silence."""
        world.links[self._name].silence()


class LinkSlow(LinkCut):
    """The way to the brokers is long and narrow."""

    def __init__(self, name: str, *, hold_s: float, bytes_s: float, delay_s: float) -> None:
        super().__init__(name, hold_s=hold_s)
        self._bytes_s = bytes_s
        self._delay_s = delay_s

    def __str__(self) -> str:
        return f"{super().__str__()}, {self._bytes_s / 1000:.0f} kB/s, {self._delay_s * 1000:.0f} ms"

    def inject(self, world: World) -> None:
        """Narrow it."""
        world.links[self._name].slow(bytes_s=self._bytes_s, delay_s=self._delay_s)


class DiskFull(Fault):
    """Nothing more can be written to a folder."""

    disks = True

    def __init__(self, folder: str, *, hold_s: float) -> None:
        self._folder = folder
        self.hold_s = hold_s

    def __str__(self) -> str:
        return f"{self._folder} for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Fill it."""
        if world.disks is not None:
            world.disks.fill(self._folder)

    def heal(self, world: World) -> None:
        """Empty it."""
        if world.disks is not None:
            world.disks.free(self._folder)


class ClockStep(Fault):
    """The wall clock of one process is set, and set back."""

    def __init__(self, name: str, *, offset_s: int, hold_s: float) -> None:
        self._name = name
        self._offset_s = offset_s
        self.hold_s = hold_s
        self.clocks = (name,)

    def __str__(self) -> str:
        return f"{self._name} by {self._offset_s:+d} s for {self.hold_s:.1f} s"

    def inject(self, world: World) -> None:
        """Set it."""
        world.clocks[self._name].step(self._offset_s)

    def heal(self, world: World) -> None:
        """Set it back."""
        world.clocks[self._name].step(0)


def _slow(rng: Random, layout: Layout) -> Fault:
    return LinkSlow(
        rng.choice(layout.of(*_STAGES)),
        hold_s=rng.uniform(4.0, 10.0),
        bytes_s=rng.choice((20e3, 50e3, 100e3)),
        delay_s=rng.choice((0.01, 0.05, 0.2)),
    )


def _clock(rng: Random, layout: Layout) -> Fault:
    name, offset_s = rng.choice(layout.of(*_STAGES)), rng.choice(_STEPS_S)
    return ClockStep(name, offset_s=offset_s, hold_s=rng.uniform(3.0, 8.0))


KINDS = (
    Kind(
        name="link-cut",
        weight=1.5,
        promise=_NETWORK,
        draw=lambda rng, layout: LinkCut(rng.choice(layout.of(*_STAGES)), hold_s=rng.uniform(2.0, 12.0)),
    ),
    Kind(
        name="link-silent",
        weight=1.5,
        promise=_NETWORK,
        draw=lambda rng, layout: LinkSilent(rng.choice(layout.of(*_STAGES)), hold_s=rng.uniform(2.0, 14.0)),
    ),
    Kind(name="link-slow", weight=1.0, promise=_NETWORK, draw=_slow),
    Kind(
        name="disk-full",
        weight=2.0,
        promise="2, 9: the last whole checkpoint stays, no version is published that is not whole",
        draw=lambda rng, _: DiskFull(rng.choice(tuple(disks.FOLDERS)), hold_s=rng.uniform(3.0, 8.0)),
        missing=lambda _: disks.missing(),
    ),
    Kind(
        name="clock-step",
        weight=2.0,
        promise="13: clocks never decide",
        draw=_clock,
        missing=lambda _: clocks.missing(),
    ),
)
