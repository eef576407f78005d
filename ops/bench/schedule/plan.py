"""What one run of `bench schedule` is to do, for its processes.

Data in and out: a JSON file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    workload: str
    num_steps: int  # that count; the run has some more
    scale: float  # real seconds per model second
    rollouts: int
    ranks: int
    slots: int | None
    extra_s: float  # of each step, model seconds
    managed: bool
    board: str  # file of the board
    out: str  # file of the books

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file."""
        return cls(**orjson.loads(path.read_bytes()))

    def write(self, path: Path) -> None:
        """Write it."""
        path.write_bytes(orjson.dumps(asdict(self)))
