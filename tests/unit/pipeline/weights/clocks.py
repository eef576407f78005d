"""Clocks of tests that need some."""

from __future__ import annotations

from topics.clock import SystemClock


class Ahead(SystemClock):
    """One that a test can put forward."""

    by_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.by_s
