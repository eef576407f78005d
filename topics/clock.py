"""Time as the system uses it: a monotonic clock that decides, a wall clock that only informs (promise 13).

Role: the one place where `time` is read. Tests and the simulator pass a `ManualClock`.
Invariants: deadlines are monotonic; a wall-clock jump changes no decision.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from schemas.errors import DeadlineExceeded


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Wall-clock time in milliseconds, for people."""
        ...

    def wait(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class ManualClock:
    """A clock that moves only when told; `wait` moves it."""

    now_s: float = 0.0
    unix_origin_ms: int = 1_700_000_000_000
    waits: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return self.unix_origin_ms + round(self.now_s * 1000)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (0 or more)."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot move by {seconds} s")
        self.now_s += seconds


@dataclass(frozen=True)
class Deadline:
    """A limit shared by all steps of one operation, instead of one time-out for each.

    Args:
        clock: decides what now is.
        at_s: the monotonic time at which it ends.
        limit_s: how long it was, for the message.
    """

    clock: Clock
    at_s: float
    limit_s: float

    @classmethod
    def after(cls, seconds: float, *, clock: Clock | None = None) -> Deadline:
        """A deadline `seconds` from now."""
        chosen = clock if clock is not None else SystemClock()
        return cls(clock=chosen, at_s=chosen.monotonic() + seconds, limit_s=seconds)

    @property
    def expired(self) -> bool:
        """True when nothing is left."""
        return self.clock.monotonic() >= self.at_s

    def remaining_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.at_s - self.clock.monotonic())

    def check(self, what: str) -> None:
        """Raise when the deadline is over.

        Raises:
            DeadlineExceeded: naming `what` was waited for and for how long.
        """
        if self.expired:
            raise DeadlineExceeded(f"waited {self.limit_s:g} s for {what}")
