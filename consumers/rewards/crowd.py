"""When others want the processors: how long to pause then.

Role: for work that nobody waits for. Its own processor time is what others leave (`pipeline.priority`), but what it
asks of the broker is not: that works at its own priority.
Data in: how long this process was ready to run and did not, as the kernel counts it. Data out: seconds to pause.
Invariants: while it gets a processor whenever it wants one, there is no pause; a pause is as long as it had to wait in
the last while, at most `MOST_PAUSE_S`, so it goes on in any case.
Failure: none; where the kernel does not count, there is no pause.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pipeline.priority import waited_s

LOOK_S = 0.5
SHARE = 0.2  # of the time waited for a processor: from here on others want them
MOST_PAUSE_S = 1.0


def _own_waited_s() -> float | None:
    return waited_s(os.getpid())


class Crowd:
    """Call `pause_s` often. Times are monotonic seconds."""

    def __init__(self, now_s: float, *, waited: Callable[[], float | None] = _own_waited_s) -> None:
        self._waited = waited
        self._looked_s, self._before_s = now_s, waited()

    def pause_s(self, now_s: float) -> float:
        """How long to do nothing now; 0 between two looks. What passes by `pause_s` itself is not counted."""
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_S:
            return 0.0
        before_s, after_s = self._before_s, self._waited()
        self._looked_s, self._before_s = now_s, after_s
        if before_s is None or after_s is None or after_s - before_s < SHARE * passed_s:
            return 0.0
        pause_s = min(MOST_PAUSE_S, after_s - before_s)
        self._looked_s += pause_s
        return pause_s
