"""Processes that outlive their starter, named so that a recycled pid is never signalled.

A process is its pid *and* the moment it started (boot id and clock ticks on Linux, `ps` elsewhere). A pid that now
belongs to something else reads as not running, and is left alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ops.services.model import ServicesError

_POLL_S = 0.02
_TERM_S = 20.0  # a broker flushes and closes its logs on SIGTERM; 0.3 s when idle
_KILL_S = 5.0
_NUM_THREADS_FIELD, _STARTTIME_FIELD = 17, 19  # /proc/<pid>/stat fields 20 and 22, counted after "pid (comm)"


@dataclass(frozen=True)
class ProcessId:
    """A process that was seen alive.

    Attributes:
        pid: process id.
        started: opaque text that differs between two processes that had the same pid.
    """

    pid: int
    started: str


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Poll `condition` until it holds or `timeout_s` seconds have passed; say whether it held."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def spawn_detached(argv: Sequence[str], *, output: Path) -> ProcessId:
    """Start `argv` in a session of its own, stdin from nowhere, stdout and stderr appended to `output`.

    Raises:
        ServicesError: the program cannot be executed, or ended before it could be identified.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawn(argv[0], list(argv), os.environ, file_actions=actions, setsid=True)
    except OSError as error:
        raise ServicesError(f"cannot execute {argv[0]}: {error.strerror}", hint="run `rlweave doctor`") from error
    seen = _look_up(pid)  # a child cannot vanish before it is waited for, so this sees it even if it just ended
    if seen is None:
        raise ServicesError(f"{argv[0]} ended at once; {tail([output])}")
    return ProcessId(pid=pid, started=seen.started)


def is_running(process: ProcessId) -> bool:
    """Say whether exactly this process is alive; a zombie is not (and is reaped when it is our child)."""
    seen = _look_up(process.pid)
    if seen is None or seen.started != process.started:
        return False
    if not seen.is_zombie:
        return True
    with suppress(ChildProcessError):  # raised when it is the child of another process, whoever called `up`
        return os.waitpid(process.pid, os.WNOHANG)[0] == 0
    return False


def stop_all(processes: Sequence[ProcessId]) -> None:
    """Ask processes to end (SIGTERM), together, then make them (SIGKILL). No-op for those that are gone.

    Raises:
        ServicesError: one is still there after both, or belongs to another user.
    """
    for signum, timeout_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
        for process in processes:
            send(process, signum)
        if wait_until(lambda: not any(map(is_running, processes)), timeout_s=timeout_s):
            return
    left = [process.pid for process in processes if is_running(process)]
    raise ServicesError(f"process {left[0]} did not end {_KILL_S:g} s after SIGKILL", hint="look at `dmesg`")


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone.

    Raises:
        ServicesError: it belongs to another user.
    """
    if not is_running(process):
        return False
    try:
        os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise ServicesError(f"process {process.pid} belongs to another user, not stopped") from error
    return True


def tail(logs: Sequence[Path], *, num_lines: int = 10) -> str:
    """Return the last lines of each log that has any, for an error message."""
    parts: list[str] = []
    for path in logs:
        lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
        if lines:
            parts += [f"last lines of {path}:", *(f"  | {line}" for line in lines[-num_lines:])]
    return "\n".join(parts) or "nothing was logged"


@dataclass(frozen=True)
class _Seen:
    started: str
    is_zombie: bool


def _look_up(pid: int) -> _Seen | None:
    """Return what the system says of process `pid`; None when there is none."""
    if not Path("/proc/self/stat").exists():
        return _look_up_by_ps(pid)
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # A main thread reads as a zombie while other threads still hold files and ports: a JVM is over with the last one.
    is_zombie = after_name[0] in "ZX" and int(after_name[_NUM_THREADS_FIELD]) <= 1
    return _Seen(started=f"{boot_id}/{after_name[_STARTTIME_FIELD]}", is_zombie=is_zombie)


def _look_up_by_ps(pid: int) -> _Seen | None:
    """The same by `ps`, for systems without /proc."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    state, _, started = subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition(" ")
    return _Seen(started=started.strip(), is_zombie=state.startswith("Z")) if started.strip() else None
