"""The programs of a unit, kept by the supervisor: the ranks of a learner, one of them or several.

Role: the deeds of `ops.supervisor.units` (one ends, all end and start again) and of `ops.supervisor.pool.TeamSize`
(another number of them is wanted: all leave in order and start again, so many).
Data in: exits, the number that is wanted, the room in the pool. Data out: signals, starts, lines for people.
A change: (1) the unit goes on as it is until the pool has room for the new size; (2) its first program gets SIGUSR2 and
tells the others, so all of them end with 0 after a checkpoint; (3) once none is left, so many start as are wanted by
then. One that dies meanwhile makes a restart with back-off of it, at the newest size, too.
Invariants: two sizes never run beside each other; nothing is started while one of them lives.
Failure: a unit that has not left after `supervisor.change_ranks_s` is killed, and so is what is left of it
`supervisor.unit_grace_s` after the first of it ended; it begins again from its newest checkpoint.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from ops.supervisor.executor import Replicas
from ops.supervisor.kept import Kept
from ops.supervisor.pool import TeamSize
from ops.supervisor.processes import Program
from ops.supervisor.restarts import GiveUp
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.units import Exit, Unit
from topics.clock import Clock

_IN_ORDER = (0, -signal.SIGUSR2, -signal.SIGTERM)  # a signal itself ends a process that has only just been started


class Team:
    """See the module.

    Args:
        members: programs of one unit, by rank; those that are not spare make up its size at the beginning.
        say: gets a line for people.
    """

    def __init__(
        self, members: Sequence[Kept], settings: SupervisorSettings, *, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._members = members
        self._settings = settings
        self._clock = clock
        self._say = say
        self._unit = Unit(settings)
        self._size = TeamSize(sum(each.is_wanted for each in members))
        self._left_by_s: float | None = None  # when those that are left are killed, while it leaves
        self._assign(None)

    @property
    def target(self) -> str:
        """What scale commands call it; empty: its size is fixed."""
        return self._members[0].slot.program.target

    @property
    def num_held(self) -> int:
        """Slots of the pool that it holds."""
        return self._size.held if self._members[0].slot.program.pooled else 0

    @property
    def replicas(self) -> Replicas:
        """Processes there are."""
        alive = sum(each.slot.alive for each in self._members)
        return Replicas(running=0, retiring=alive) if self._size.is_leaving else Replicas(running=alive, retiring=0)

    def scale(self, size: int) -> None:
        """Have so many from the next change on.

        Raises:
            ValueError: it has not so many programs.
        """
        if not 1 <= size <= len(self._members):
            raise ValueError(f"{self.target!r} has {len(self._members)} programs, asked for are {size}")
        self._size.want(size)

    def ended(self, kept: Kept, *, code: int) -> None:
        """A process of it has ended."""
        now_s, program = self._clock.monotonic(), kept.slot.program
        for each in self._members:
            each.start_at_s = None
        if self._left_by_s is not None:
            self._left_by_s = min(self._left_by_s, now_s + self._settings.unit_grace_s)
            for each in self._members:
                each.slot.ask_to_stop()  # nothing new to one that was told; one that waits for the others hears of it
            if code in _IN_ORDER:
                return
        if self._size.size > 1:
            self._say(f"{program.name} ended with {kept.slot.how_it_ended(code)}; all of {program.unit} end with it")
        self._unit.ended(Exit(name=program.name, code=code, lived_s=kept.slot.lived_s), now_s=now_s)

    def turn(self, room_left: int) -> tuple[Program, GiveUp] | None:
        """Go on with a fall or a change, or begin one; a program and why it ends the run."""
        alive = [each for each in self._members if each.slot.alive]
        kill_at_s = [each for each in (self._unit.kill_at_s, self._left_by_s) if each is not None]
        if kill_at_s:
            if not alive:
                return self._begin_again(room_left)
            if self._clock.monotonic() >= min(kill_at_s):
                for each in alive:
                    each.slot.kill()
        elif not alive:
            self._change_start(room_left)
        elif len(alive) == self._size.size and self._size.may_change(room_left):
            self._leave()
        return None

    def _leave(self) -> None:
        self._size.leave()
        self._left_by_s = self._clock.monotonic() + self._settings.change_ranks_s
        self._members[0].slot.ask_to_retire()
        unit = self._members[0].slot.program.unit
        self._say(
            f"{unit}: {self._size.size} to {self._size.wanted} ranks; it finishes its step, keeps a checkpoint and "
            "starts again"
        )

    def _begin_again(self, room_left: int) -> tuple[Program, GiveUp] | None:
        before, after_s = self._size.size, 0.0
        if self._unit.exits:
            why, decision = self._unit.decide()
            first = next(each for each in self._members if each.slot.program.name == why.name)
            if isinstance(decision, GiveUp):
                return first.slot.program, decision
            after_s = decision.after_s
            self._say_again(first, code=why.code, after_s=after_s)
        self._left_by_s = None
        size = self._size.begin_again(room_left)
        self._assign(self._clock.monotonic() + after_s)
        if size != before:
            self._say(f"{self._members[0].slot.program.unit} starts with {size} rank(s)")
        return None

    def _change_start(self, room_left: int) -> None:
        """It waits for its restart: another size is none that it would have to leave for."""
        start_at_s = self._members[0].start_at_s
        if start_at_s is not None and self._size.may_change(room_left):
            self._size.begin_again(room_left)
            self._assign(start_at_s)

    def _assign(self, start_at_s: float | None) -> None:
        """Say who is part of it, and when they start."""
        for rank, each in enumerate(self._members):
            setting = each.slot.program.size_setting
            each.is_wanted = rank < self._size.size
            each.start_at_s = start_at_s if each.is_wanted else None
            each.slot.more = ("--set", f"{setting}={self._size.size}") if setting else ()

    def _say_again(self, first: Kept, *, code: int, after_s: float) -> None:
        names = [each.slot.program.name for each in self._members if each.is_wanted]
        if len(names) == 1:
            how = first.slot.how_it_ended(code)
            self._say(f"{first.slot.program.name} ended with {how}; starting again in {after_s:g} s")
        else:
            self._say(f"{', '.join(names)} have ended; starting all of them again in {after_s:g} s")
