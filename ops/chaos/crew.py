"""The processes of the run, under the supervisor that `rlweave up` uses, in a thread of its own.

Role: starts and ends the crew; names, pids and signals for faults.
Invariants: only children of this process, and theirs, are signalled, so a pid that was used again is never hit.
Failure: what ends the run shows as `ended`, with the supervisor's last lines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ops.supervisor.executor import Replicas
from ops.supervisor.processes import Program
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.supervisor import RunEnds, Supervisor
from pipeline.exit_codes import ExitCode
from pipeline.stage import StopSignal
from topics.clock import Deadline, SystemClock

_SAID = 30  # last lines of the supervisor that are kept
_PPID_FIELD = 1  # /proc/<pid>/stat field 4, counted after "pid (comm)"
_FORK_MODULE = b"consumers.rewards.fork_server"  # in the command of the process that forks those that score


class Crew:
    """One life of the run's processes.

    Args:
        say: gets each line of the supervisor.
        slots: of the pool that rollouts and learner ranks share; None: they share none.
        each_turn: called with the supervisor in each of its turns.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        settings: SupervisorSettings,
        *,
        ends: RunEnds,
        say: Callable[[str], None],
        slots: int | None = None,
        each_turn: Callable[[Supervisor], None] = lambda _: None,
    ) -> None:
        self.programs = tuple(programs)
        self.said: list[str] = []
        self.disorderly: list[str] = []  # what did not stop in order when it was asked to
        self.ended: int | None = None  # exit code, once the supervisor is through
        self._say = say
        self._stop = StopSignal()
        self._orders: list[Callable[[], None]] = []
        self._supervisor = Supervisor(
            programs,
            settings,
            clock=SystemClock(),
            stop=self._stop,
            ends=ends,
            on_event=self._note,
            each_turn=self._obey,
        )
        self._supervisor.slots = slots
        self._each_turn = each_turn
        self._thread = threading.Thread(target=self._run, name="supervisor")

    def start(self) -> None:
        """Start every program."""
        self._thread.start()

    def stop(self, *, grace_s: float | None = None) -> int:
        """End all in order; returns the exit code.

        Args:
            grace_s: whoever is still there after it is aborted, which leaves what it was doing in its log.
        """
        self._stop.request("chaos")
        if grace_s is not None:
            self._thread.join(grace_s)
            if self._thread.is_alive():
                self.abort()
        return self.join()

    def abort(self) -> None:
        """End all at once; each leaves in its log what its threads were doing (`faulthandler`)."""
        for name in self.names():
            self.send(name, signal.SIGCONT)
            self.send(name, signal.SIGABRT)

    def join(self, *, limit_s: float | None = None) -> int:
        """Wait until all have ended by themselves; past the limit they are stopped."""
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._stop.request("chaos")
            self._thread.join()
        return 0 if self.ended is None else self.ended

    def names(self, *stages: str) -> list[str]:
        """Names of the programs of these stages; of all when none is named."""
        return [program.name for program in self.programs if not stages or program.stage in stages]

    def replicas(self, target: str) -> Replicas:
        """Processes of a target of scale commands."""
        return self._supervisor.replicas[target]

    def pid(self, name: str) -> int | None:
        """Process that lives in a slot now."""
        pids = self._supervisor.pids[name]
        return pids[-1] if pids and _is_own_child(pids[-1]) else None

    def pids(self) -> dict[str, int]:
        """Living processes by name."""
        found = {name: self.pid(name) for name in self.names()}
        return {name: pid for name, pid in found.items() if pid is not None}

    def send(self, name: str, number: signal.Signals) -> int | None:
        """Signal the process of a slot; returns its pid, None when there is none now."""
        pid = self.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def workers(self, name: str) -> list[int]:
        """Processes in which a reward consumer runs its plug-in: those that its fork server made."""
        pid = self.pid(name)
        servers = [] if pid is None else [child for child in _children(pid) if _forks(child)]
        return [worker for server in servers for worker in _children(server)]

    def send_worker(self, name: str, pid: int, *, number: signal.Signals) -> bool:
        """Signal a worker of a reward consumer; False when it is its worker no more."""
        if pid not in self.workers(name):
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def replace(self, name: str, *, limit_s: float = 10.0) -> subprocess.Popen[bytes] | None:
        """Leave the process of a slot to itself, as one on a host that nobody reaches, and start another one."""
        released: list[subprocess.Popen[bytes] | None] = []
        done = threading.Event()

        def order() -> None:
            released.append(self._supervisor.replace(name))
            done.set()

        self._orders.append(order)
        done.wait(limit_s)
        return released[0] if released else None

    def last_words(self) -> str:
        """What the supervisor said last, without the log lines of stages in it."""
        return "; ".join(line.strip() for line in self.said[-8:] if " INFO " not in line)

    def log_of(self, name: str) -> Path:
        """Log file of a program."""
        return next(program.log_file for program in self.programs if program.name == name)

    def _run(self) -> None:
        code = int(ExitCode.INTERNAL)
        try:
            code = self._supervisor.run()
        finally:
            self.ended = code

    def _obey(self) -> None:
        while self._orders:
            self._orders.pop(0)()
        self._each_turn(self._supervisor)

    def _note(self, line: str) -> None:
        if " stopped with code " in line:
            self.disorderly.append(line)
        self.said = [*self.said, line][-_SAID:]
        self._say(line)


def wait_ended(process: subprocess.Popen[bytes], *, limit_s: float) -> int | None:
    """Exit code of a process that was left to itself; None, and killed, when it is still there at the limit."""
    deadline = Deadline.after(limit_s)
    try:
        return process.wait(timeout=deadline.remaining_s())
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        return None


def _is_own_child(pid: int) -> bool:
    return _parent(pid) == os.getpid()


def _children(pid: int) -> list[int]:
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return sorted(each for each in found if _parent(each) == pid)


def _forks(pid: int) -> bool:
    try:
        return _FORK_MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _parent(pid: int) -> int | None:
    """Parent of a living process; None for one that is gone or only waits to be asked for its end."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else int(after_name[_PPID_FIELD])
