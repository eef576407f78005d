"""Child processes of a run: what to start, and one slot that keeps a process in it.

Role: the only place that starts and signals stage processes. A process is ended by the handle that started it, never
by name, and never by a pid read from a file.
Data in: a `Program`. Data out: pids and exit codes.
Failure: a program that cannot be started raises `OSError`, which is a bug of the installation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.supervisor.words import how_it_ended, reason_of
from topics.clock import Clock, Deadline

PARENT_VARIABLE = "RLWEAVE_SUPERVISOR_PID"  # a stage stops when this process is gone


@dataclass(frozen=True, kw_only=True)
class Program:
    """One process to keep running."""

    name: str  # "rollout-0"
    stage: str  # "rollout"
    arguments: tuple[str, ...]  # of `rlweave`
    log_file: Path
    command: tuple[str, ...] = (sys.executable, "-m", "ops.cli")  # what takes the arguments
    environment: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""  # programs of one unit end and start together; empty: none
    target: str = ""  # what a scale command calls programs of this kind; empty: their number is fixed
    spare: bool = False  # not started before more of its kind are wanted
    pooled: bool = False  # holds a slot of the pool
    size_setting: str = ""  # setting that tells it how many its unit consists of; empty: that never changes


class Slot:
    """Holds one process of a program, and its history."""

    def __init__(self, program: Program, *, clock: Clock) -> None:
        self.program = program
        self.pids: list[int] = []
        self.more: tuple[str, ...] = ()  # arguments of the next start, after those of the program
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._log_begin_bytes = 0  # where this life begins in the log

    def start(self) -> int:
        """Start the program; output goes to its log file. Returns the pid."""
        self.program.log_file.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.program.environment, PARENT_VARIABLE: str(os.getpid())}
        with self.program.log_file.open("ab") as output:
            self._log_begin_bytes = output.tell()
            self._process = subprocess.Popen(
                [*self.program.command, *self.program.arguments, *self.more],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the supervisor only, which stops in order
            )
        self._started_s = self._clock.monotonic()
        self.pids.append(self._process.pid)
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code of a process that ended since the last call, else None; an ended one is forgotten."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is not None:
            self._process = None
        return code

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def lived_s(self) -> float:
        """Time since the last start."""
        return self._clock.monotonic() - self._started_s

    def how_it_ended(self, code: int) -> str:
        """The exit code of the life that ended, with what it said last."""
        why = reason_of(code, log_file=self.program.log_file, begin_bytes=self._log_begin_bytes)
        return f"{how_it_ended(code)}: {why}" if why else how_it_ended(code)

    def release(self) -> subprocess.Popen[bytes] | None:
        """Give the process away, alive; it is the caller's from then on."""
        process, self._process = self._process, None
        return process

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def ask_to_retire(self) -> None:
        """Send SIGUSR2: finish what is in hand, take no more, and end."""
        self._send(signal.SIGUSR2)

    def kill(self) -> None:
        """Send SIGKILL, which also ends a process that stands still."""
        self._send(signal.SIGKILL)

    def wait_stopped(self, *, deadline: Deadline) -> int | None:
        """Wait for the end; kill at the deadline. Returns the exit code, None if there was no process."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(timeout=deadline.remaining_s())
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
