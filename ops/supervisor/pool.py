"""The pool of slots that rollouts and learner ranks share. Pure: numbers in, numbers out.

Role: says what may start now, and with how many ranks a learner runs, is to run, and begins again.
Invariants: what is held is at most what there is, whatever is asked for in whatever order. A process holds its slot
from its start until it has ended, and one that will be started again holds it meanwhile. A learner that is to grow goes
on at its size until there is room for all of it, and holds the new size before it leaves. When all that is wanted fits
into the pool, all of it comes about once those that retire have ended; of what does not fit, who has slots keeps them.
Failure: none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


def room(slots: int | None, *, held: Iterable[int]) -> int:
    """Slots that nobody holds.

    Args:
        slots: of the pool; None: there is none, so there is always room.
        held: by each of those that share it.
    """
    return sys.maxsize if slots is None else max(0, slots - sum(held))


class TeamSize:
    """How many programs a unit consists of: all of them leave and start again when the number changes.

    Args:
        size: of the beginning.
    """

    def __init__(self, size: int) -> None:
        self.size = size  # that it runs with, or begins with again
        self._wanted = size
        self._next: int | None = None  # held beside the present size while it leaves

    @property
    def wanted(self) -> int:
        """The number asked for last."""
        return self._wanted

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to leave and has not begun again."""
        return self._next is not None

    @property
    def held(self) -> int:
        """Slots it holds."""
        return max(self.size, self._next or 0)

    def want(self, size: int) -> None:
        """Have so many from the next change on."""
        self._wanted = size

    def may_change(self, room_left: int) -> bool:
        """Whether it can leave for another size now: there is room for all of it."""
        return not self.is_leaving and self._wanted != self.size and self._wanted - self.size <= room_left

    def leave(self) -> None:
        """It was asked to leave."""
        self._next = self._wanted

    def begin_again(self, room_left: int) -> int:
        """All of it has ended: the size it begins with, which is the newest wanted one if there is room for it."""
        kept = self.size if self._next is None else self._next
        self.size = self._wanted if self._wanted - self.held <= room_left else kept
        self._next = None
        return self.size
