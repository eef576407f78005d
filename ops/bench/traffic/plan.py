"""How much is measured, and what the network looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ops.netlab.plan import Host, LabPlan

SOURCE, STORE = "source", "store"
DOMAIN = "near"
PORT, STORE_PORT = 7001, 7021
GOODPUT = 0.95  # of a shaped rate: the rest is headers


@dataclass(frozen=True, kw_only=True)
class TrafficPlan:
    """The size of the benchmark.

    Attributes:
        size_bytes: of the version that is published.
        checkpoint_bytes: of the checkpoint that is uploaded meanwhile.
        rate_mbit: of each host's link, in each direction.
        part_bytes: of an upload: 10 ms of the link, as the default of 8 MiB is on one of 6 Gbit/s.
        parallel: parts under way at a time; 10 is what the common tools for object stores do.
        lead_s: an upload runs alone for so long before the publish begins.
        slow_share: of the link, that engines take where they take less than they could.
        num_slow_repeats: of the sets with such engines.
    """

    num_engines: int = 3
    size_bytes: int = 64 * 2**20
    chunk_bytes: int = 2**20
    checkpoint_bytes: int = 192 * 2**20
    rate_mbit: float = 200.0
    part_bytes: int = 256 * 2**10
    parallel: int = 10
    lead_s: float = 1.0
    num_repeats: int = 5
    slow_share: float = 0.4
    num_slow_repeats: int = 3

    @classmethod
    def quick(cls) -> Self:
        """Under 60 s."""
        return cls(num_engines=2, size_bytes=32 * 2**20, checkpoint_bytes=96 * 2**20, num_repeats=2, num_slow_repeats=1)

    @property
    def engines(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"engine{number}" for number in range(1, self.num_engines + 1))

    @property
    def link_bytes_s(self) -> float:
        """What a link carries of content."""
        return self.rate_mbit * 1e6 / 8 * GOODPUT

    @property
    def room_bytes(self) -> int:
        """What all hosts hold at a time."""
        return self.size_bytes * (self.num_engines + 1) + 2 * self.checkpoint_bytes

    @property
    def lab(self) -> LabPlan:
        """The network."""
        names = (SOURCE, STORE, *self.engines)
        return LabPlan(
            hosts=tuple(Host(name=name, domain=DOMAIN) for name in names),
            domains=(DOMAIN,),
            rate_mbit=self.rate_mbit,
        )
