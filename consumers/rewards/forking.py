"""The fork server as the reward consumer sees it.

Role: starts `consumers.rewards.fork_server`, asks it for processes and for how they ended.
Data in: pipes of a new process. Data out: its pid.
Invariants: a pid from here stays that of the same process until `reap`; of a server that died itself all it had forked
dies with it (prctl(2)), and what those had started is ended by their sessions, which keep the numbers. A new server
takes the place of one that died.
Failure: `PluginError` when no process can be had.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from consumers.rewards.leftovers import end_sessions, end_tree
from pipeline.credentials import public_environment
from pipeline.priority import session_nice
from schemas.errors import PluginError

_START_S = 60.0  # it has to import first
_ANSWER_S = 15.0  # later; one that is stopped must not keep a stage that is to stop, in its time for that
_REAP_S = 5.0
_MOST_BYTES = 64
_LEFT_S = 1.0  # for processes of a server that died to be gone, too


@dataclass(frozen=True, kw_only=True)
class Forked:
    """A process that the server forked."""

    pid: int
    server: int  # which server it is from: the first, the second, ...


class ForkServer:
    """See the module. Nothing is started before the first `fork`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._num_servers = 0
        self._pids: set[int] = set()  # forked by the server there is, not killed yet

    def fork(self, *, jobs_fd: int, said_fd: int) -> Forked:
        """A process that scores, with these ends of its pipes; they stay ours to close.

        Raises:
            PluginError: none can be had.
        """
        last = OSError("it ended")
        for _ in range(2):  # the server may have been killed since the last time
            try:
                said = self._ask(b"start", fds=[jobs_fd, said_fd]).decode()
            except OSError as error:
                last = error
                self.close()
                continue
            if said.isdigit():
                self._pids.add(int(said))
                return Forked(pid=int(said), server=self._num_servers)
            raise PluginError(f"no process can be started for the plug-in: {said[1:]}")
        raise PluginError(f"no process can be started for the plug-in: {last}") from last

    def how_it_ended(self, forked: Forked) -> str:
        """In words; empty while it goes on."""
        gone = "the process ended with the one that had forked it"
        if forked.server != self._num_servers or self._control is None:
            return gone
        try:
            said = self._ask(b"ended %d" % forked.pid).decode()
        except OSError:
            self.close()
            return gone
        return "" if said == "-" else said

    def kill(self, forked: Forked) -> None:
        """End it at once, and all that it started; it is reaped when the kernel lets it go."""
        if forked.server != self._num_servers or self._control is None:
            return
        self._pids.discard(forked.pid)
        end_tree(forked.pid)  # not reaped yet, so nobody else has the number
        with suppress(OSError):
            self._control.send(b"reap %d" % forked.pid)

    def close(self) -> None:
        """End the server, and with it all it has forked."""
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it ends when that lets it
                process.wait(_REAP_S)
        pids, self._pids = self._pids, set()
        end_sessions(pids, limit_s=_LEFT_S)

    def _ask(self, what: bytes, *, fds: list[int] | None = None) -> bytes:
        control = self._control if self._control is not None else self._start()
        try:
            socket.send_fds(control, [what], fds if fds is not None else [])
            said = control.recv(_MOST_BYTES)
        except TimeoutError:
            if self._process is not None:
                self._process.kill()  # it would not hear that it is to end
            raise
        if not said:
            raise ConnectionResetError("the process that forks others has ended")
        control.settimeout(_ANSWER_S)
        return said

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nice = session_nice() or 0
        paths = os.pathsep.join(path for path in sys.path if path)
        with its:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "consumers.rewards.fork_server", str(its.fileno()), str(nice)],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                env=public_environment() | {"PYTHONPATH": paths},
                start_new_session=True,
            )
        ours.settimeout(_START_S)
        self._control = ours
        self._num_servers += 1
        return ours
