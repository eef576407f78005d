"""Processes of tests: started, waited for and signalled by pid, with their output in a file.

Only processes that were started here, and children of these, are ever signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topics.clock import Deadline

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0  # longest wait for one condition


@dataclass
class Process:
    """One process that a test started."""

    arguments: tuple[str, ...]
    log_file: Path
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code; past the limit it is killed and the test fails with its output."""
        try:
            return self.popen.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.arguments} did not end within {limit_s:g} s:\n{self.output()}") from None

    def send(self, number: signal.Signals) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def output(self) -> str:
        return self.log_file.read_text(errors="replace")


def spawn(
    arguments: Sequence[str],
    *,
    log_file: Path,
    cwd: Path = ROOT,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start `rlweave` with output to a file, behind a command that becomes it (`prefix`)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | dict(env or {})
    with log_file.open("ab") as output:
        popen = subprocess.Popen(
            [*prefix, sys.executable, "-m", "ops.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
        )
    return Process(arguments=tuple(arguments), log_file=log_file, popen=popen)


def children_of(pid: int) -> dict[int, str]:
    """Living children of a process: pid -> command line."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            pids = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, pids):
            line = command_of(child)
            if line:
                found[child] = line
    return found


def command_of(pid: int) -> str:
    """Command line of a living process; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def child_with(supervisor: Process, *parts: str) -> int:
    """Pid of the first child whose command line holds all of these."""
    deadline = Deadline.after(LIMIT_S)
    while True:
        found = [pid for pid, line in children_of(supervisor.pid).items() if all(part in line for part in parts)]
        if found:
            return found[0]
        deadline.check(f"a child of {supervisor.pid} with {parts}")
        time.sleep(0.02)


def signal_pid(pid: int, number: signal.Signals) -> None:
    """Signal a child of a process that was started here."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_gone(pids: Sequence[int], *, limit_s: float) -> None:
    """Until none of the processes lives."""
    deadline = Deadline.after(limit_s)
    while any(command_of(pid) for pid in pids):
        alive = {pid: command_of(pid) for pid in pids if command_of(pid)}
        deadline.check(f"processes to end: {alive}")
        time.sleep(0.05)
