"""How many programs of a kind run, and how one of them leaves. Pure: standings and times in, decisions out.

Role: decides which of the programs of one kind start or retire when another number of them is wanted.
Invariants: a program whose process still lives is never chosen to start, so no slot has two; those with the highest
numbers retire first, those with the lowest free numbers start first; what retires does not come back, as it takes no
more work. When the only free places are still being left, or the pool has no room, fewer start than are wanted, and the
rest follows.
Failure: none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Standing = Literal["free", "working", "retiring"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What to do to the programs of a kind, by their slot numbers."""

    start: tuple[int, ...] = ()
    retire: tuple[int, ...] = ()


def choose(standings: Sequence[Standing], *, replicas: int, room: int = sys.maxsize) -> Change:
    """What brings the number of working programs to `replicas`.

    Args:
        standings: of every slot, by its number. Working is also what died and will be started again.
        replicas: programs that are to work.
        room: most that may start.
    """
    working = [number for number, standing in enumerate(standings) if standing == "working"]
    if len(working) > replicas:
        return Change(retire=tuple(reversed(working[replicas:])))
    free = [number for number, standing in enumerate(standings) if standing == "free"]
    return Change(start=tuple(free[: min(replicas - len(working), room)]))


class Retirement:
    """The time that a program has to leave: to finish, then to stop, then it is killed.

    Args:
        now_s: when it was asked to retire.
        retire_s: time to finish what it has.
        grace_s: time for an orderly stop after that.
    """

    def __init__(self, *, now_s: float, retire_s: float, grace_s: float) -> None:
        self._stop_at_s = now_s + retire_s
        self._kill_at_s = self._stop_at_s + grace_s
        self._said: set[str] = set()

    def due(self, *, now_s: float) -> Literal["stop", "kill"] | None:
        """What to do to it now, if it still lives; each is said once."""
        if now_s >= self._kill_at_s:
            return "kill" if self._once("kill") else None
        if now_s >= self._stop_at_s:
            return "stop" if self._once("stop") else None
        return None

    def _once(self, what: str) -> bool:
        is_new = what not in self._said
        self._said.add(what)
        return is_new
