"""The programs of a kind as a number of them: starts further ones, and lets go of those that are too many.

Role: the deeds of `ops.supervisor.scaling`, for the supervisor.
Data in: the number that is wanted, exits. Data out: starts, signals, lines for people.
Invariants: what is wanted is a state: asking for it twice changes nothing, and it is kept up at each turn; a program
that was asked to retire is never started again before its process has ended; what shares the pool waits for room.
Failure: a program that does not end by itself is stopped after `supervisor.retire_s`, and killed when the grace of a
stop is over; what it had in hand goes to others, as after any death.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

from ops.supervisor.executor import Replicas
from ops.supervisor.kept import Kept
from ops.supervisor.restarts import RestartPolicy
from ops.supervisor.scaling import Retirement, choose
from ops.supervisor.settings import SupervisorSettings
from topics.clock import Clock


class Scaling:
    """Keeps the wanted number of programs of each kind.

    Args:
        kept: all programs of the run; those of a kind in the order of their slot numbers.
        grace_s: time that processes have for an orderly stop.
        room: gives the slots of the pool that nobody holds.
        say: gets a line for people.
    """

    def __init__(
        self,
        kept: Sequence[Kept],
        settings: SupervisorSettings,
        *,
        clock: Clock,
        grace_s: float,
        room: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._grace_s = grace_s
        self._room = room
        self._say = say
        self._kinds: dict[str, list[Kept]] = {}
        for each in kept:
            if each.slot.program.target:
                self._kinds.setdefault(each.slot.program.target, []).append(each)
        self._wanted: dict[str, int] = {}  # what was asked for

    @property
    def replicas(self) -> dict[str, Replicas]:
        """By target."""
        return {
            target: Replicas(
                running=sum(each.is_wanted and each.slot.alive for each in kind),
                retiring=sum(each.retirement is not None for each in kind),
            )
            for target, kind in self._kinds.items()
        }

    @property
    def num_held(self) -> int:
        """Slots of the pool that programs hold, those that retire included."""
        pooled = (each for kind in self._kinds.values() for each in kind if each.slot.program.pooled)
        return sum(each.standing != "free" for each in pooled)

    def scale(self, target: str, replicas: int) -> None:
        """Have so many programs of a kind from now on.

        Raises:
            ValueError: there is no such kind, or it has not so many programs.
        """
        most = len(self._kinds.get(target, ()))
        if not 0 <= replicas <= most:
            raise ValueError(f"{target!r} has {most} programs, asked for are {replicas}")
        self._wanted[target] = replicas
        self._adjust(target)

    def turn(self) -> None:
        """Hurry those that take too long to leave, and fill places that have become free."""
        for kind in self._kinds.values():
            for each in kind:
                if each.retirement is not None:
                    self._hurry(each, each.retirement)
        for target in self._wanted:
            self._adjust(target)

    def ended(self, kept: Kept, *, code: int) -> None:
        """The process of a retired program has ended."""
        kept.retirement = None
        program = kept.slot.program
        if code in (0, -signal.SIGUSR2):  # the signal itself ends a process that has only just been started
            self._say(f"{program.name} has retired")
        else:
            how = kept.slot.how_it_ended(code)
            self._say(f"{program.name} was retired and ended with {how}; see {program.log_file}")

    def _adjust(self, target: str) -> None:
        kind = self._kinds[target]
        room = self._room() if kind[0].slot.program.pooled else sys.maxsize
        change = choose([each.standing for each in kind], replicas=self._wanted[target], room=room)
        for number in change.retire:
            self._retire(kind[number])
        for number in change.start:
            self._start(kind[number])

    def _start(self, kept: Kept) -> None:
        kept.is_wanted, kept.policy = True, RestartPolicy(self._settings)
        pid = kept.slot.start()
        self._say(f"{kept.slot.program.name} started, pid {pid}")

    def _retire(self, kept: Kept) -> None:
        kept.is_wanted, kept.start_at_s = False, None
        if not kept.slot.alive:  # it waited for a restart
            return
        kept.retirement = Retirement(
            now_s=self._clock.monotonic(), retire_s=self._settings.retire_s, grace_s=self._grace_s
        )
        kept.slot.ask_to_retire()
        self._say(f"{kept.slot.program.name} is retired: it finishes what it has")

    def _hurry(self, kept: Kept, retirement: Retirement) -> None:
        due, name = retirement.due(now_s=self._clock.monotonic()), kept.slot.program.name
        if due == "stop":
            self._say(f"{name} was retired and is not through after {self._settings.retire_s:g} s; stopping it")
            kept.slot.ask_to_stop()
        elif due == "kill":
            self._say(f"{name} was retired and did not stop within {self._grace_s:g} s; killing it")
            kept.slot.kill()
