"""What goes wrong while a version travels. Each is told what happens, and acts through `Site`.

Failure: a fault that did not come about is `BenchError`: the figure would be that of an undisturbed run.
"""

from __future__ import annotations

import time
from typing import Protocol

from ops.bench.weights import words
from ops.bench.weights.crew import Crew
from ops.bench.weights.plan import NEAR, SOURCE
from ops.netlab.counters import received_bytes
from ops.netlab.lab import Lab

STANDBY = "standby"  # the node that takes the source's place
_LOOK_S = 0.1


class Site(Protocol):
    """Where the fault happens: one set that is being carried out."""

    @property
    def crew(self) -> Crew:
        """All nodes."""
        ...

    @property
    def lab(self) -> Lab:
        """The network."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of what travels."""
        ...

    @property
    def engines(self) -> tuple[str, ...]:
        """Those that fetch."""
        ...

    @property
    def far_engines(self) -> tuple[str, ...]:
        """Those of them in the far domain."""
        ...

    def serve_order(self, node: str) -> words.Serve:
        """What makes a node serve its store."""
        ...


class Fault(Protocol):
    """Something that goes wrong.

    Attributes:
        victim: the node that was killed; empty before.
        look_s: how often `look` is called; None: never.
    """

    victim: str
    look_s: float | None

    def tell_at_bytes(self, node: str, *, site: Site) -> int:
        """When a node is to say `Reached`; 0: never."""
        ...

    def reached(self, node: str, *, site: Site) -> None:
        """A node said it."""
        ...

    def gone(self, node: str, *, site: Site) -> None:
        """A node has ended."""
        ...

    def look(self, site: Site) -> None:
        """Some time has passed."""
        ...


class Nothing:
    """No fault."""

    victim = ""
    look_s: float | None = None

    def tell_at_bytes(self, node: str, *, site: Site) -> int:  # noqa: ARG002
        return 0

    def reached(self, node: str, *, site: Site) -> None:
        """Nothing."""

    def gone(self, node: str, *, site: Site) -> None:
        """Nothing."""

    def look(self, site: Site) -> None:
        """Nothing."""


class EngineDies(Nothing):
    """The engine in the middle is killed when half of its bytes are there."""

    def tell_at_bytes(self, node: str, *, site: Site) -> int:
        return site.size_bytes // 2 if node == _middle(site) else 0

    def reached(self, node: str, *, site: Site) -> None:
        if node == _middle(site):
            self.victim = node
            site.crew.kill(node)


class SourceRestarts(Nothing):
    """The source's peer process is killed when it has served half a copy; another takes its port a while later."""

    look_s: float | None = _LOOK_S

    def __init__(self, *, away_s: float) -> None:
        self._away_s = away_s
        self._back_at_s = 0.0

    def tell_at_bytes(self, node: str, *, site: Site) -> int:
        return site.size_bytes // 2 if node == SOURCE and not self.victim else 0  # its successor lives on

    def reached(self, node: str, *, site: Site) -> None:
        if node == SOURCE:
            self.victim = node
            site.crew.kill(node)

    def gone(self, node: str, *, site: Site) -> None:  # noqa: ARG002
        if node == SOURCE:
            self._back_at_s = time.monotonic() + self._away_s

    def look(self, site: Site) -> None:
        if 0 < self._back_at_s <= time.monotonic():
            self._back_at_s = 0.0
            site.crew.rename(STANDBY, to=SOURCE)
            site.crew.tell(SOURCE, site.serve_order(SOURCE))


class DomainSeedDies(Nothing):
    """Of the far engines, the one that brought most over the slow link is killed when half a copy has crossed it."""

    look_s: float | None = _LOOK_S

    def __init__(self, *, crossed_before_bytes: int) -> None:
        self._before_bytes = crossed_before_bytes

    def look(self, site: Site) -> None:
        lab = site.lab
        if self.victim or lab.crossed(NEAR) - self._before_bytes < site.size_bytes // 2:
            return
        near = {lab.plan.address(node) for node in (SOURCE, *site.engines) if node not in site.far_engines}
        brought = {engine: _from(near, engine=engine, site=site) for engine in site.far_engines}
        self.victim = max(brought, key=lambda engine: brought[engine])
        site.crew.kill(self.victim)


def _middle(site: Site) -> str:
    return site.engines[(len(site.engines) - 1) // 2]


def _from(addresses: set[str], *, engine: str, site: Site) -> int:
    got = received_bytes(site.lab.namespaces[engine])
    return sum(num_bytes for address, num_bytes in got.items() if address in addresses)
