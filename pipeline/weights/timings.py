"""How long requests usually take, and with it what is late.

Role: running estimates for `swarm`, apart for requests within the domain and outside: their links differ.
Data in and out: seconds a request took; whether one is late, how patient to be with others.
Invariants: nothing is late before one request of its kind has succeeded.
Failure: none.
"""

from __future__ import annotations

_USUAL_TIMES = 4.0  # so many times the usual is late
_LATE_S = 2.0  # and at least so long
_HELP_AFTER_S = 1.0  # least patience with others
_NEW_SHARE = 0.2  # of the newest measurement


class Timings:
    """See the module."""

    def __init__(self) -> None:
        self._usual_s: dict[bool, float] = {}  # by whether it was within the domain

    def took(self, seconds: float, *, is_near: bool) -> None:
        """A request succeeded."""
        usual_s = self._usual_s.get(is_near, seconds)
        self._usual_s[is_near] = (1 - _NEW_SHARE) * usual_s + _NEW_SHARE * seconds

    def is_late(self, seconds: float, *, is_near: bool) -> bool:
        """Whether a request that has taken so long should have been answered."""
        usual_s = self._usual_s.get(is_near)
        return usual_s is not None and seconds > max(_LATE_S, _USUAL_TIMES * usual_s)

    @property
    def patience_s(self) -> float:
        """How long others may bring nothing into the domain."""
        return max(_HELP_AFTER_S, _USUAL_TIMES * self._usual_s.get(False, 0.0))
