"""Numbers over time in bounded memory: a fixed number of bins that widen as the run gets longer.

Data in: (time, value) in any order. Data out: one mean or sum per bin.
Invariants: at most `MAX_BINS` bins; widening merges neighbours and loses no amount; times before the start clamp to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_BINS = 240


@dataclass
class Bins:
    """Sums and counts per bin of `width_s` seconds."""

    width_s: float = 1.0
    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        """Add a value at a time since the start, in seconds."""
        while max(0.0, at_s) >= self.width_s * MAX_BINS:
            self._widen()
        index = int(max(0.0, at_s) / self.width_s)
        missing = index + 1 - len(self.sums)
        if missing > 0:
            self.sums.extend([0.0] * missing)
            self.counts.extend([0] * missing)
        self.sums[index] += value
        self.counts[index] += 1

    def means(self) -> tuple[list[float], list[float]]:
        """(times in seconds at the middle of the bins, means), bins without values left out."""
        filled = [index for index, count in enumerate(self.counts) if count]
        return [(index + 0.5) * self.width_s for index in filled], [
            self.sums[index] / self.counts[index] for index in filled
        ]

    def _widen(self) -> None:
        self.width_s *= 2
        if len(self.sums) % 2:
            self.sums.append(0.0)
            self.counts.append(0)
        self.sums = [first + second for first, second in zip(self.sums[::2], self.sums[1::2], strict=True)]
        self.counts = [first + second for first, second in zip(self.counts[::2], self.counts[1::2], strict=True)]
