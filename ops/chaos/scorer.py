"""The reward of the run that faults are put to: number match, at the pace of a scorer that has something to do.

Role: keeps the tiny run from taking a whole machine, and gives faults a chance to meet samples that are being scored.
"""

from __future__ import annotations

from consumers.rewards.api import Sample
from consumers.rewards.builtin import NumberMatch
from ops.chaos.sleeping import sleep_for


class PacedScorer(NumberMatch):
    """See the module.

    Args:
        seconds: time per sample.
    """

    name = "paced_number_match"
    version = "1"

    def __init__(self, *, seconds: float = 0.03) -> None:
        self._seconds = seconds

    def score(self, sample: Sample) -> float:
        """As `NumberMatch`, after a while."""
        sleep_for(self._seconds)  # its process may have inherited a clock of ours
        return super().score(sample)
