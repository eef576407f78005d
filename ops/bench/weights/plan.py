"""How much is measured, and what the network looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ops.netlab.plan import Host, LabPlan

SOURCE = "source"
NEAR, FAR = "near", "far"  # the two domains; the source is in the first
SLOW_SHARE = 0.25  # of the hosts' rate: 50 of 200 Mbit/s
LOWERED_SHARE = 0.75  # of the rate, when the processors were too busy
MAX_CPU_BUSY = 0.85
PORT = 7001


@dataclass(frozen=True, kw_only=True)
class WeightsPlan:
    """The size of the benchmark.

    Attributes:
        rate_mbit: of each host's link, in each direction.
        num_lowered: how often the rate may be lowered.
        restart_s: how long the source's peer process is away.
        probe_share: of the size; so much is fetched over the slow link alone to measure its goodput.
        crossing_share: of the size; so much travels where there are two domains.
    """

    num_engines: int = 8
    size_bytes: int = 256 * 2**20
    chunk_bytes: int = 2**20
    rate_mbit: float = 200.0
    num_lowered: int = 2
    restart_s: float = 1.0
    probe_share: float = 0.125
    crossing_share: float = 1.0
    delta_quick: bool = False

    @classmethod
    def quick(cls) -> Self:
        """Under 45 s."""
        return cls(
            num_engines=4,
            size_bytes=24 * 2**20,
            chunk_bytes=256 * 2**10,
            num_lowered=1,
            crossing_share=1 / 3,
            delta_quick=True,
        )

    @property
    def engines(self) -> tuple[str, ...]:
        """Their names; the second half is in the far domain when there are two."""
        return tuple(f"engine{number}" for number in range(1, self.num_engines + 1))

    @property
    def far_engines(self) -> tuple[str, ...]:
        """Those that are moved to the far domain."""
        return self.engines[self.num_engines // 2 :]

    @property
    def room_bytes(self) -> int:
        """What all stores hold at a time: every engine a copy, and the source three versions."""
        return round(self.size_bytes * (self.num_engines + 1 + self.probe_share + self.crossing_share))

    def lab(self, *, rate_mbit: float) -> LabPlan:
        """The network, with all hosts in one domain at first."""
        return LabPlan(
            hosts=tuple(Host(name=name, domain=NEAR) for name in (SOURCE, *self.engines)),
            domains=(NEAR, FAR),
            rate_mbit=rate_mbit,
            between_mbit=rate_mbit * SLOW_SHARE,
        )
