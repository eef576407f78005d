"""How fast a scorer works, how long a sample takes it, and how often it fails: lately.

Role: the numbers of one plug-in for metrics and `rlweave status`.
Data in: verdicts, in the order they came. Data out: a `Pace` per look.
Invariants: each look covers the time since the one before; one without a verdict says rate 0 and keeps the rest.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of the time between two looks."""

    samples_per_s: float
    mean_s: float  # of the plug-in's time per sample; in a batch, an equal share of it
    failure_share: float  # 0 to 1


class PaceMeter:
    """Call `add` per verdict and `look` now and then. Times are monotonic seconds."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._num = self._num_failed = 0
        self._total_ms = 0.0
        self._last = Pace(samples_per_s=0.0, mean_s=0.0, failure_share=0.0)

    def add(self, *, failed: bool, duration_ms: float) -> None:
        """One sample has its verdict."""
        self._num += 1
        self._num_failed += failed
        self._total_ms += duration_ms

    def look(self, now_s: float) -> Pace:
        """What was since the last look."""
        passed_s, num = now_s - self._since_s, self._num
        if passed_s <= 0:
            return self._last
        self._last = Pace(
            samples_per_s=num / passed_s,
            mean_s=self._total_ms / num / 1000 if num else self._last.mean_s,
            failure_share=self._num_failed / num if num else self._last.failure_share,
        )
        self._since_s, self._num, self._num_failed, self._total_ms = now_s, 0, 0, 0.0
        return self._last
