"""Ends processes that score with what they started, and what those that are gone have left behind.

Role: a process that scores leads a session. While it is there, all below it are found, in whatever session. When its
fork server died it died, too, and nobody is left below whom to look: then its session tells.
Data in: pids of processes that lead, or led, a session each. Data out: SIGKILL for them, for those below, for who else
is in those sessions.
Invariants: a number is not given to another process while a session has it, so who is in the session of a leader that
is gone was started by that leader; of a number whose process is there, `end_sessions` ends nobody.
Failure: none; who made a session of its own and has no living parent is not found.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from topics.clock import Deadline

_LOOK_S = 0.01
_PROC = Path("/proc")


def end_sessions(leaders: Collection[int], *, limit_s: float) -> None:
    """End all who are in the sessions of these processes, which are about to be gone: that is waited for, in all at
    most `limit_s`."""
    left, deadline = set(leaders), Deadline.after(limit_s)
    while left:
        gone = {pid for pid in left if not _is_there(pid)}
        for pid, session in _sessions():
            if session in gone:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        left -= gone
        if deadline.expired:
            return
        if left:
            deadline.clock.wait(_LOOK_S)


def end_tree(leader: int) -> None:
    """End a process that leads a session and is not reaped yet, with all it started."""
    below = _below(leader)  # of one that has ended nobody is below
    with suppress(ProcessLookupError, PermissionError):
        os.kill(leader, signal.SIGKILL)  # it may not lead its session yet
        os.killpg(leader, signal.SIGKILL)
    _kill(below)


def end_below() -> None:
    """End what this process has started, and what that has started."""
    _kill(_below(os.getpid()))


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """Children of a process, and their children, ..."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(_PROC):
        if name.isdecimal() and (found := _stat(name)) is not None:
            children.setdefault(int(found[1]), []).append(int(name))
    below, todo = list[int](), [pid]
    while todo:
        todo = [child for parent in todo for child in children.get(parent, ())]
        below += todo
    return below


def _is_there(pid: int) -> bool:
    found = _stat(str(pid))
    return found is not None and found[0] != "Z"


def _sessions() -> Iterator[tuple[int, int]]:
    """pid and session of every process."""
    for name in os.listdir(_PROC):
        if name.isdecimal() and (found := _stat(name)) is not None:
            yield int(name), int(found[3])


def _stat(name: str) -> list[str] | None:
    """State, parent, group, session, ... (proc(5)); None: there is no such process."""
    try:
        return (_PROC / name / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
