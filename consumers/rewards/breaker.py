"""The breaker of a reward plug-in: stops taking samples when too many of them fail.

Role: a pure state machine; verdicts and times in, what may be taken out.
Invariants: closed -> open when the share of failures in a full window exceeds the limit; open -> half-open after
the pause; half-open lets one sample through: its success closes, its failure opens again.
Failure: none.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from consumers.rewards.settings import RewardSettings


class BreakerState(StrEnum):
    """What the breaker lets through."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # nothing
    HALF_OPEN = "half_open"  # one sample, as a probe


class Breaker:
    """One plug-in's breaker. Times are monotonic seconds."""

    def __init__(self, settings: RewardSettings) -> None:
        self._limit = settings.breaker_failures
        self._pause_s = settings.breaker_pause_s
        self._window: deque[bool] = deque(maxlen=settings.breaker_window)  # True: failed
        self._opened_s: float | None = None
        self._probing = False

    @property
    def failure_share(self) -> float:
        """Failed samples among those looked back on, 0 to 1."""
        return self.num_failed / self.num_seen if self._window else 0.0

    @property
    def num_seen(self) -> int:
        """Samples looked back on."""
        return len(self._window)

    @property
    def num_failed(self) -> int:
        """Failed ones among them."""
        return sum(self._window)

    def state(self, now_s: float) -> BreakerState:
        """The state at `now_s`."""
        if self._opened_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self._opened_s + self._pause_s else BreakerState.HALF_OPEN

    def may_take(self, wanted: int, *, now_s: float) -> int:
        """How many of `wanted` samples may be scored now."""
        match self.state(now_s):
            case BreakerState.CLOSED:
                return wanted
            case BreakerState.OPEN:
                return 0
            case BreakerState.HALF_OPEN:
                return 0 if self._probing else min(1, wanted)

    def taken(self) -> None:
        """A sample is being scored: while the breaker is not closed, it is the probe."""
        self._probing = self._opened_s is not None

    def add(self, *, failed: bool, now_s: float, is_probe: bool = True) -> bool:
        """Take in one verdict; True when the breaker opened or closed by it.

        Samples that were already being scored when it opened (`is_probe` False) say nothing about its end.
        """
        if self._opened_s is None:
            self._window.append(failed)
            if len(self._window) < (self._window.maxlen or 1) or self.failure_share <= self._limit:
                return False
            self._opened_s = now_s
            return True
        if not self._probing or not is_probe:
            return False
        self._probing = False
        if failed:
            self._opened_s = now_s
            return False
        self._opened_s = None
        self._window.clear()
        return True

    def probe_given_back(self) -> None:
        """The probe ended without a verdict (its partition went to another member)."""
        self._probing = False
