"""How many groups may be admitted now: pure decisions.

Role: credit (promise 7), the need of the rest of the run, and the scheduler's rate.
Invariants: open groups never exceed the credit; nothing is admitted that the remaining steps cannot use, so no work is
wasted at the end. Both only save work: staleness itself is enforced by the learner at the cut.
Failure: none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.settings import RunSettings
from schemas.records import Command
from topics.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the run stands, as the log tells."""

    num_admitted: int
    num_closed: int  # in the surviving history
    step: int  # optimizer steps done in it
    lag_versions: int = 0  # publish lag that was measured; 0: none, what is set counts

    @property
    def num_open(self) -> int:
        """Groups admitted and not closed."""
        return self.num_admitted - self.num_closed


def room(progress: Progress, run: RunSettings) -> int:
    """Groups that credit and need leave room for, 0 or more."""
    credit = run.credit_at(progress.lag_versions) - progress.num_open
    need = (run.max_steps - progress.step) * run.groups_per_step - progress.num_open
    return max(0, min(credit, need))


def lag_of(command: Command | None) -> int:
    """The publish lag that the scheduler commands; 0 where it commands none, or no number."""
    lag = None if command is None else command.rate
    return int(lag) if lag is not None and 0 <= lag < math.inf else 0


class RateLimit:
    """The scheduler's wish in groups per second; what one second allows can be used at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate: float | None = None
        self._stock = 0.0
        self._at_s = clock.monotonic()

    def set(self, rate: float | None) -> None:
        """Follow another rate; 0 pauses, None lifts the limit. The same rate again, or no number, changes nothing."""
        if rate is not None and not math.isfinite(rate):
            return
        if rate != self._rate:
            self._rate = rate
            self._stock = 0.0
            self._at_s = self._clock.monotonic()

    def allowed(self) -> int | None:
        """Groups allowed now; None: no limit."""
        if self._rate is None:
            return None
        now_s = self._clock.monotonic()
        largest = max(1.0, self._rate) if self._rate > 0 else 0.0
        self._stock = min(largest, self._stock + max(0.0, self._rate) * (now_s - self._at_s))
        self._at_s = now_s
        return math.floor(self._stock)

    def used(self, num_groups: int) -> None:
        """So many were admitted."""
        self._stock = max(0.0, self._stock - num_groups)
