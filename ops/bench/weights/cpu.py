"""How busy the processors of the machine are, by all that runs on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle, waiting for a disk
_NUM_FIELDS = 8  # up to steal; guests are part of user


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Clock ticks of all processors since boot."""

    idle: int
    total: int

    def busy_since(self, before: CpuTimes) -> float:
        """Share of processor time that was used, 0 to 1."""
        total = self.total - before.total
        return 0.0 if total <= 0 else 1.0 - (self.idle - before.idle) / total


def read_times() -> CpuTimes:
    """The times now."""
    return parse_times(_STAT.read_text("ascii"))


def parse_times(text: str) -> CpuTimes:
    """Read the first line of `/proc/stat`."""
    fields = [int(word) for word in text.splitlines()[0].split()[1 : 1 + _NUM_FIELDS]]
    return CpuTimes(idle=sum(fields[index] for index in _IDLE_FIELDS), total=sum(fields))
