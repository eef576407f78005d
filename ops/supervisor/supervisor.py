"""Keeps all processes of a run alive until the learner is done, then ends them in order.

Role: `rlweave up`. Observations are exits and the stop signal; deeds are starts and signals.
End of a run: (1) the learner exits with 0; (2) prompts and rollouts stop; (3) rewards finish what was sampled;
(4) rewards, scheduler and peer stop. A stop from outside skips (1) and (3).
Invariants: a stage that dies is started again with a growing wait, and so is a learner that was stopped before its run
was complete; an exit code a restart cannot mend ends the run; the ranks of a learner end and start together, and change
their number so (`ops.supervisor.team`); rollouts and rewards become more or fewer when that is asked for
(`ops.supervisor.replicas`), and one that was let go is not started again; rollouts and ranks never hold more slots than
the pool has (`ops.supervisor.pool`); no process is left behind, whatever happens here.
Failure: the exit code is that of the stage that ended the run.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol

from ops.supervisor.executor import Replicas
from ops.supervisor.kept import Kept
from ops.supervisor.pool import room
from ops.supervisor.processes import Program, Slot
from ops.supervisor.replicas import Scaling
from ops.supervisor.restarts import GiveUp, RestartPolicy
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.team import Team
from ops.supervisor.words import last_words
from pipeline.exit_codes import ExitCode
from pipeline.stage import StopSignal
from topics.clock import Clock, Deadline

STOP_ORDER = (("prompts", "rollout"), ("reward", "reference", "evaluator"), ("learner",), ("scheduler", "peer"))
DRAINED = STOP_ORDER[1]  # what is left to do at the end of a run is done before they are stopped
_POLL_S = 0.1
_log = logging.getLogger(__name__)


class RunEnds(Protocol):
    """What the end of a run depends on, besides exits."""

    @property
    def grace_s(self) -> float:
        """Time that processes have for an orderly stop."""
        ...

    def is_complete(self) -> bool:
        """Whether the run has ended on purpose."""
        ...

    def is_drained(self) -> bool:
        """Whether every sample has been scored; unknown is no."""
        ...


class Supervisor:
    """Supervises the programs of one run.

    Args:
        ends: tells whether the run is complete, when the learner exits with 0, and whether every sample is scored.
        on_event: called with a line for people, and with the stage it concerns.
        each_turn: called once per loop turn, for progress.
        on_exit: called with the stage and the pid of each process that was seen to end.

    Attributes:
        slots: size of the pool that rollouts and learner ranks share; None: they share none. Set it before `run`.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        settings: SupervisorSettings,
        *,
        clock: Clock,
        stop: StopSignal,
        ends: RunEnds,
        on_event: Callable[[str], None],
        each_turn: Callable[[], None] = lambda: None,
        on_exit: Callable[[str, int], None] = lambda _stage, _pid: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._ends = ends
        self._on_event = on_event
        self._each_turn = each_turn
        self._on_exit = on_exit
        self.slots: int | None = None
        self._kept = [
            Kept(Slot(program, clock=clock), RestartPolicy(settings), is_wanted=not program.spare)
            for program in programs
        ]
        alone = [kept for kept in self._kept if not kept.slot.program.unit]
        self._scaling = Scaling(alone, settings, clock=clock, grace_s=ends.grace_s, room=self._room, say=on_event)
        self._teams = {
            unit: Team(
                [kept for kept in self._kept if kept.slot.program.unit == unit], settings, clock=clock, say=on_event
            )
            for unit in dict.fromkeys(program.unit for program in programs if program.unit)
        }

    @property
    def pids(self) -> dict[str, list[int]]:
        """All pids each program had, in order of their starts."""
        return {kept.slot.program.name: list(kept.slot.pids) for kept in self._kept}

    @property
    def replicas(self) -> dict[str, Replicas]:
        """Processes that run, and that still retire, of each kind whose number can change."""
        teams = {team.target: team.replicas for team in self._teams.values() if team.target}
        return {**self._scaling.replicas, **teams}

    def run(self) -> int:
        """Run to the end; returns the exit code."""
        code: int | None = None
        is_through = False
        try:
            for kept in self._kept:
                if kept.is_wanted:
                    kept.slot.start()
            while code is None and not self._stop.requested:
                code = self._turn()
                self._each_turn()
                self._stop.wait(_POLL_S)
            is_through = code == ExitCode.OK
        finally:
            self._end(drain=is_through)
        return int(ExitCode.OK) if code is None else code

    def replace(self, name: str) -> subprocess.Popen[bytes] | None:
        """Give away the process of a program, alive, and start another in its slot: what happens when a host is cut off
        and its processes are started elsewhere. Call from `each_turn` only."""
        kept = next(each for each in self._kept if each.slot.program.name == name)
        process = kept.slot.release()
        kept.retirement = None  # whoever has the process now sees to it
        if kept.is_wanted:
            kept.start_at_s = self._clock.monotonic()
        return process

    def scale(self, target: str, replicas: int) -> None:
        """Have so many programs of a kind from now on: start some that are spare, or retire those with the highest
        numbers; a learner leaves and starts again with so many ranks. What shares the pool waits for room in it. Call
        from `each_turn` only.

        Raises:
            ValueError: there is no such kind, or it has not so many programs.
        """
        team = next((team for team in self._teams.values() if team.target == target), None)
        if team is None:
            self._scaling.scale(target, replicas)
        else:
            team.scale(replicas)

    def _turn(self) -> int | None:
        for kept in self._kept:
            exit_code = self._poll(kept.slot)
            if exit_code is not None:
                ended = self._ended(kept, exit_code)
                if ended is not None:
                    return ended
            elif kept.start_at_s is not None and self._clock.monotonic() >= kept.start_at_s:
                kept.start_at_s = None
                pid = kept.slot.start()
                self._on_event(f"{kept.slot.program.name} started again, pid {pid}")
        self._scaling.turn()
        for team in self._teams.values():
            given_up = team.turn(self._room())
            if given_up is not None:
                return self._give_up(*given_up)
        return None

    def _room(self) -> int:
        """Slots of the pool that nobody holds."""
        return room(self.slots, held=[self._scaling.num_held, *(team.num_held for team in self._teams.values())])

    def _poll(self, slot: Slot) -> int | None:
        code = slot.poll()
        if code is not None:
            self._on_exit(slot.program.stage, slot.pids[-1])
        return code

    def _ended(self, kept: Kept, exit_code: int) -> int | None:
        """Handle one exit; a number ends the run with it."""
        program = kept.slot.program
        if kept.retirement is not None:
            self._scaling.ended(kept, code=exit_code)
            return None
        if program.stage == "learner" and exit_code == ExitCode.OK and self._ends.is_complete():
            return int(ExitCode.OK)
        if program.unit:
            self._teams[program.unit].ended(kept, code=exit_code)
            return None
        decision = kept.policy.decide(code=exit_code, lived_s=kept.slot.lived_s)
        if isinstance(decision, GiveUp):
            return self._give_up(program, decision)
        kept.start_at_s = self._clock.monotonic() + decision.after_s
        how = kept.slot.how_it_ended(exit_code)
        self._on_event(f"{program.name} ended with {how}; starting again in {decision.after_s:g} s")
        return None

    def _give_up(self, program: Program, decision: GiveUp) -> int:
        self._on_event(f"{program.name} ended the run: {decision.reason}; see {program.log_file}")
        for line in last_words(program.log_file):
            self._on_event(f"  {line}")
        return decision.code if decision.code != 0 else int(ExitCode.ERROR)

    def _end(self, *, drain: bool) -> None:
        for stages in STOP_ORDER:
            if drain and stages == DRAINED:
                self._wait_drained()
            deadline = Deadline.after(self._ends.grace_s, clock=self._clock)  # one that hangs takes no time from others
            slots = [kept.slot for kept in self._kept if kept.slot.program.stage in stages]
            for slot in slots:
                if drain:
                    self._tell_gone(slot)
                slot.ask_to_stop()
            for slot in slots:
                code = slot.wait_stopped(deadline=deadline)
                if code is not None:
                    self._on_exit(slot.program.stage, slot.pids[-1])
                if code not in (None, 0):
                    self._on_event(f"{slot.program.name} stopped with code {code}; see {slot.program.log_file}")

    def _tell_gone(self, slot: Slot) -> None:
        """Name a process that ended by itself when the learner was done: nothing was left for it to do."""
        code = self._poll(slot)
        if code:
            how = slot.how_it_ended(code)
            self._on_event(f"{slot.program.name} ended with {how}; not started again, as the run is over")

    def _wait_drained(self) -> None:
        deadline = Deadline.after(self._settings.drain_s, clock=self._clock)
        while not self._ends.is_drained():
            self._keep_rewards()
            if deadline.expired or self._stop.requested:
                self._on_event(f"rewards or evaluations did not finish within {self._settings.drain_s:g} s")
                return
            self._clock.wait(_POLL_S)

    def _keep_rewards(self) -> None:
        """A reward consumer or evaluator that dies while draining is started again at once."""
        for kept in self._kept:
            if not kept.is_wanted:
                continue
            if kept.slot.program.stage in DRAINED and (self._poll(kept.slot) is not None or not kept.slot.alive):
                kept.start_at_s = None
                kept.slot.start()
