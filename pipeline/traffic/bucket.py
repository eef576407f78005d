"""A token bucket whose rate may change, for senders that ask before each piece.

Role: under `gate`.
Data in: pieces somebody wants to send. Data out: 0 (sent for, book it) or how long to wait before asking again.
Invariants: while the rate stays, at most rate * t + max(burst, one piece) is booked in any span of t seconds; a piece
larger than the burst goes when the bucket is full, and the debt is waited for afterwards. Nothing is booked for who
has to wait, so a more urgent one that asks in between is served first.
Failure: none; a rate of 0 lets nothing pass, None lets all pass.
"""

from __future__ import annotations

from topics.clock import Clock

_ROUNDING_BYTES = 1e-3  # less than this is no reason to wait


class Bucket:
    """See the module. Not for several threads at once.

    Args:
        rate: bytes per second; None: no limit.
        burst_s: what may pass at once after a pause, in seconds of the rate.
        clock: monotonic.
    """

    def __init__(self, *, rate: float | None, burst_s: float, clock: Clock) -> None:
        self._rate = rate
        self._burst_s = burst_s
        self._clock = clock
        self._level = self._burst
        self._seen_s = clock.monotonic()

    def set_rate(self, rate: float | None) -> None:
        """Another rate from now on. What was saved up at a higher one is gone, a debt stays."""
        if rate == self._rate:
            return
        self._fill()
        was_open = self._rate is None
        self._rate = rate
        self._level = self._burst if was_open else min(self._level, self._burst)

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` may be booked, as far as this bucket goes; infinite at rate 0."""
        if self._rate is None:
            return 0.0
        self._fill()
        missing = min(amount, self._burst) - self._level
        if missing <= _ROUNDING_BYTES and self._rate > 0:
            return 0.0
        return float("inf") if self._rate == 0 else missing / self._rate

    def book(self, amount: float) -> None:
        """`amount` is being sent; what is above the level is a debt that the next ones wait for."""
        self._fill()
        if self._rate is not None:
            self._level -= amount

    @property
    def _burst(self) -> float:
        return 0.0 if self._rate is None else self._rate * self._burst_s

    def _fill(self) -> None:
        now_s = self._clock.monotonic()
        if self._rate is not None:
            self._level = min(self._burst, self._level + (now_s - self._seen_s) * self._rate)
        self._seen_s = now_s
