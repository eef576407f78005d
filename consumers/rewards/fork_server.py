"""Forks the processes that score: `python -m consumers.rewards.fork_server CONTROL_FD NICE`, started by `forking`.

Role: has imported everything but the plug-in, so a process that replaces a killed one costs milliseconds, not the
start of an interpreter. No code that is not ours runs in it: each process loads the plug-in itself.
Data in: `start` with the two ends of pipes of `consumers.rewards.worker`, `ended PID`, `reap PID`. Data out: a pid, or
how a process ended; `-`: it has not.
Invariants: a process leads a session, so a process group, of its own before anybody knows its pid; its number is not
given to another one before `reap`. When the reward consumer is gone, killed or not, it ends the processes with all that
they started, and itself. The processes end with it in any case (prctl(2)).
Failure: `!` and the reason, when the system forks no more.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress

from consumers.rewards import worker
from consumers.rewards.leftovers import end_tree
from pipeline.priority import set_session_nice

_MOST_BYTES = 64
_TRIES, _PAUSE_S = 5, 0.05  # of setting the nice value: a user may do that ten times a second
_LOOK_S = 1.0  # between two looks at whether the consumer is there: another process may hold its end of the socket
_GONE = b"the process ended with the one that had forked it"


def main(control_fd: int, *, nice: int) -> int:
    """Serve until the other side closes its end; in a process that was forked, score.

    Args:
        nice: of the session of the reward consumer; that of each process is the same.
    """
    gc.freeze()  # what is here is shared with the processes: a collection would copy it
    own, forked = os.getpid(), set[int]()
    try:
        with socket.socket(fileno=control_fd) as control:
            pipes = _serve(control, forked, nice=nice)
    except ConnectionError:  # the consumer ended while it was answered
        pipes = None
    finally:
        if os.getpid() == own:
            for pid in forked:
                end_tree(pid)
    return 0 if pipes is None else worker.main(*pipes)


def _serve(control: socket.socket, forked: set[int], *, nice: int) -> tuple[int, int] | None:
    """None at the end; in a forked process its ends of the pipes."""
    starter, dead = os.getppid(), set[int]()
    control.settimeout(_LOOK_S)
    while True:
        try:
            asked, fds, _, _ = socket.recv_fds(control, _MOST_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            if os.getppid() != starter:
                return None
            continue
        dead = {pid for pid in dead if not _reaped(pid)}
        match asked.split():
            case []:
                return None
            case [b"start"]:
                pid = _fork(control, fds, nice=nice)
                if pid == 0:
                    return fds[0], fds[1]
                forked |= {pid} if pid is not None else set()
            case [b"ended", pid]:
                control.send(_how_it_ended(int(pid)))
            case [b"reap", pid]:
                forked.discard(int(pid))
                dead |= set() if _reaped(int(pid)) else {int(pid)}


def _fork(control: socket.socket, fds: list[int], *, nice: int) -> int | None:
    """Fork: 0 in the new process; elsewhere its pid, None without one."""
    own, pid = os.getpid(), None
    try:
        pid = os.fork()
    except OSError as error:
        control.send(f"!{error}".encode()[:_MOST_BYTES])
    if pid != 0:
        for fd in fds:
            os.close(fd)
        return pid
    os.setsid()
    worker.end_with_starter()
    if os.getppid() != own:  # it ended in between, so nothing would end this one
        os._exit(1)
    tries = _TRIES
    while nice and tries and not set_session_nice(nice):
        tries -= 1
        time.sleep(_PAUSE_S)
    control.send(str(os.getpid()).encode())
    return 0


def _how_it_ended(pid: int) -> bytes:
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return _GONE
    if seen is None:
        return b"-"
    if seen.si_code == os.CLD_EXITED:
        return f"the process ended with code {seen.si_status}".encode()
    return f"the process was ended by {signal.Signals(seen.si_status).name}".encode()


def _reaped(pid: int) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), nice=int(sys.argv[2])))
