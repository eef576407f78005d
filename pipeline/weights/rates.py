"""Rates: a token bucket that any number of senders share.

Role: bounds what a traffic class sends.
Data in: amounts about to be sent. Data out: how long to wait before each.
Invariants: in any span of t seconds at most rate * t + burst passes (for the burst its first amount, where that is
more). Senders are served in the order in which they ask.
Failure: `WeightsError` for a rate or burst that is not positive.
"""

from __future__ import annotations

from math import isfinite

from schemas.errors import WeightsError
from topics.clock import Clock, SystemClock


class TokenBucket:
    """See the module. Not for several threads at once.

    Args:
        rate: what passes per second, in any unit.
        burst: what may pass at once after a pause, in the same unit.
        clock: monotonic.
    """

    def __init__(self, *, rate: float, burst: float, clock: Clock | None = None) -> None:
        if not (isfinite(rate) and isfinite(burst) and rate > 0 and burst > 0):
            raise WeightsError(f"a rate of {rate:g} per second with a burst of {burst:g}: both must be above 0")
        self.rate = rate
        self._burst = burst
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._level = burst  # below 0: promised already
        self._seen_s = self._clock.monotonic()

    def take(self, amount: float) -> float:
        """Book `amount`; seconds to wait before sending it."""
        now_s = self._clock.monotonic()
        self._level = min(self._burst, self._level + (now_s - self._seen_s) * self.rate) - amount
        self._seen_s = now_s
        return max(0.0, -self._level / self.rate)
