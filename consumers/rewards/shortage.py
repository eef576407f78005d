"""How many calls a second may hang before the others wait for them.

Role: the arithmetic behind the notice `scorers_held`. A call that never returns has a process until its time limit, so
with M processes and a limit of T seconds no more than M / T such calls a second can begin: when more come, the reward
is as fast as they allow, however many processors there are.
Data in: `Held` now and then. Data out: both rates, and a sentence with what to do.
Invariants: the rate is over the last `WINDOW_S`, so it says what is, not what was once.
Failure: none.
"""

from __future__ import annotations

import math
from collections import deque

from consumers.rewards.pool import Held

WINDOW_S = 30.0
_LEAST_S = 1.0  # a rate over less says little


class Shortage:
    """Call `add` now and then. Times are monotonic seconds."""

    def __init__(self, now_s: float, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen: deque[tuple[float, int]] = deque([(now_s, 0)])  # time, calls until then
        self._held = Held()

    @property
    def num_ever(self) -> int:
        """Calls that held a process, as of the last look."""
        return self._held.num_ever

    @property
    def held_per_s(self) -> float:
        """Calls that came to hold a process, lately."""
        (first_s, before), (last_s, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(_LEAST_S, last_s - first_s)

    @property
    def most_per_s(self) -> float:
        """Those that can, when each has its process for the whole limit."""
        return self._held.most / self._timeout_s

    def add(self, held: Held, *, now_s: float) -> None:
        """What is held now."""
        self._held = held
        self._seen.append((now_s, held.num_ever))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()

    def text(self) -> str:
        """What it means, without the name of the reward."""
        held, per_s, most_per_s = self._held, self.held_per_s, self.most_per_s
        said = (
            f"samples wait, as {held.num} of {held.most} processes have a call that takes much longer than others; "
            f"{per_s:.2g} such calls a second came lately, {most_per_s:.2g} can at most with timeout_s = "
            f"{self._timeout_s:g}"
        )
        if per_s <= most_per_s:
            return said
        num_more = math.ceil(per_s * self._timeout_s) - held.most
        enough_s = held.most / per_s
        return f"{said}: the others wait for these until timeout_s is {enough_s:.2g} or held_workers {num_more} more"
