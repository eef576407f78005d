"""How much processor time a process takes while others want it.

Role: for work that nobody waits for: scoring the past, evaluating, a call of a scorer that does not come back.
Data in: a pid and how far it stands back. Data out: the kernel's scheduling of it.
Invariants: two things are set, because one alone does nothing on half of all machines: the policy or nice value of the
process, which counts within its scheduling group, and the nice value of its group where the kernel puts each session
into a group of its own (sched(7), "The autogroup feature"): a stage under the supervisor is a session, so `nice` by
itself changes nothing between stages.
Failure: none; what the system does not allow is left as it is, and the answer says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOWEST = 19  # nice value
_PROC = Path("/proc")
_LINE_BYTES = 96


def session_nice(pid: int | None = None) -> int | None:
    """Nice value of the scheduling group that the session of a process has; None where there are none."""
    try:
        words = (_PROC / _name(pid) / "autogroup").read_text().split()
        return int(words[2])  # "/autogroup-12 nice 0"
    except (OSError, IndexError, ValueError):
        return None


def set_session_nice(nice: int, *, pid: int | None = None) -> bool:
    """Set it, for all of that session; whether that was allowed (the kernel lets users do it ten times a second)."""
    try:
        (_PROC / _name(pid) / "autogroup").write_text(str(nice))
    except OSError:
        return False
    return True


def set_idle(idle: bool, *, pid: int = 0) -> bool:
    """Only the processor time that others leave (SCHED_IDLE), or an ordinary share again; whether that was allowed."""
    try:
        os.sched_setscheduler(pid, os.SCHED_IDLE if idle else os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return False
    return True


def stand_back(*, niceness: int | None = None) -> Callable[[], None]:
    """Let others go first: this thread, what it starts from here on, and this session.

    Args:
        niceness: as of the command nice, 0 to 19; None: only what others leave.

    Returns:
        To be called at the end: a session that began before this process, as that of a terminal, gets its share back.
    """
    if niceness is None:
        set_idle(True)
    else:
        with suppress(OSError):
            os.nice(niceness)
    before = session_nice()
    if before is None:
        return lambda: None
    set_session_nice(max(before, LOWEST if niceness is None else niceness))
    if os.getsid(0) == os.getpid():  # the session ends with us
        return lambda: None

    def give_back() -> None:
        set_session_nice(before)

    return give_back


def waited_s(pid: int) -> float | None:
    """Seconds that the first thread of a process was ready to run and did not; None: unknown."""
    return _scheduled_s(pid, column=1)


def ran_s(pid: int) -> float | None:
    """Seconds that the first thread of a process had a processor; None: unknown."""
    return _scheduled_s(pid, column=0)


def _scheduled_s(pid: int, *, column: int) -> float | None:
    try:
        return int((_PROC / str(pid) / "schedstat").read_text().split()[column]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class OwnWait:
    """`waited_s` of this process, at the cost of a microsecond a look. 0 throughout where the kernel does not count."""

    def __init__(self) -> None:
        try:
            self._fd: int | None = os.open(_PROC / "self" / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = None

    def seconds(self) -> float:
        """Until now."""
        if self._fd is None:
            return 0.0
        try:
            return int(os.pread(self._fd, _LINE_BYTES, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def close(self) -> None:
        """Look no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _name(pid: int | None) -> str:
    return "self" if pid is None else str(pid)
