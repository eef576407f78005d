"""How much of the link the weights take, measured while nothing of the background disturbs them.

Role: between the connections that send weights and `gate`.
Data in: how many bodies are being sent, and bytes that receivers have acknowledged. Data out: `Flow`.
How: a burst of weights begins with the first body. It is measured in windows of `WINDOW_S` from when more bodies than
before (or less than half as many) are under way; until two windows agree the rate is unknown, and the background, which
then sends nothing, cannot have slowed it. Later windows may raise the rate, never lower it: what is lower then may be
so because of the background. Receivers that take nothing for `GONE_S` hold up nobody, until they take something.
Invariants: pure; unknown is None, not 0.
Failure: none; without acknowledged bytes (another system than Linux) the rate stays unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 0.1
QUIET_S = 0.02  # without a body for so long a burst is over: receivers pause between two chunks
STALE_S = 0.6  # who has not looked for so long knows nothing of what leaves now
GONE_S = 1.0  # receivers that take nothing for so long are gone, or stand still
_AGREE = 0.2  # two windows that differ by less agree


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The weights that leave now."""

    is_active: bool
    bytes_s: float | None  # None: not known yet


IDLE = Flow(is_active=False, bytes_s=0.0)


class FlowWatch:
    """See the module; look at it often."""

    def __init__(self) -> None:
        self._busy_s: float | None = None  # when a body was last under way
        self._begin_s = 0.0  # of the window
        self._begin_bytes: float | None = 0.0
        self._most = 0  # bodies under way
        self._former: float | None = None  # rate of the window before
        self._known: float | None = None
        self._looked_s = float("-inf")
        self._moved_s = 0.0  # when bytes were last acknowledged
        self._moved_bytes: float | None = None

    def look(self, now_s: float, *, num_sending: int, num_bytes: float | None, is_draining: bool = False) -> Flow:
        """Take in how things are now.

        Args:
            num_bytes: acknowledged since the process began; None: cannot be seen.
            is_draining: something is under way that no body accounts for any more.
        """
        is_busy = num_sending > 0 or is_draining
        if now_s - self._looked_s > STALE_S:
            self._most = 0
        self._looked_s = now_s
        if not is_busy and (self._busy_s is None or now_s - self._busy_s >= QUIET_S):
            self._busy_s, self._most = None, 0
            return IDLE
        if is_busy:
            self._busy_s = now_s
        was_gone = self._is_gone(now_s)
        if num_bytes is None or num_bytes != self._moved_bytes:
            self._moved_s, self._moved_bytes = now_s, num_bytes
        if num_sending > self._most or 0 < num_sending < self._most / 2 or (was_gone and not self._is_gone(now_s)):
            self._begin_anew(now_s, num_sending=num_sending, num_bytes=num_bytes)
        elif now_s - self._begin_s >= WINDOW_S:
            self._measure(now_s, num_bytes=num_bytes)
        return IDLE if self._is_gone(now_s) else Flow(is_active=True, bytes_s=self._known)

    def _is_gone(self, now_s: float) -> bool:
        """Whether receivers take nothing any more: they hold up nobody."""
        return now_s - self._moved_s >= GONE_S

    def _begin_anew(self, now_s: float, *, num_sending: int, num_bytes: float | None) -> None:
        if self._most == 0:
            self._moved_s = now_s
        self._most, self._former, self._known = num_sending, None, None
        self._begin_s, self._begin_bytes = now_s, num_bytes

    def _measure(self, now_s: float, *, num_bytes: float | None) -> None:
        if num_bytes is not None and self._begin_bytes is not None:
            rate = (num_bytes - self._begin_bytes) / (now_s - self._begin_s)
            if self._known is not None:
                self._known = max(self._known, rate)
            elif self._former is not None and abs(rate - self._former) <= _AGREE * max(rate, self._former):
                self._known = max(rate, self._former)
            self._former = rate
        self._begin_s, self._begin_bytes = now_s, num_bytes
