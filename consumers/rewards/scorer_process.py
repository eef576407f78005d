"""One process that scores, as the reward consumer sees it: its pipes, and the jobs it has.

Role: starts, feeds, reads, times and ends a `consumers.rewards.worker`.
Data in: jobs; data out: what the process says.
Invariants: no call waits, but `end` for at most `_REAP_S`; the time of a job begins when the process can begin it; the
process leads a group of its own, so what it started in it ends with it. It prints to where this process prints.
Failure: a process that died, or said what cannot be read, shows as `ended`; `PluginError` when none can be started.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from consumers.rewards import wire
from consumers.rewards.pool import Job
from pipeline.credentials import public_environment
from schemas.errors import PluginError

_PIPE_BYTES = 1024 * 1024  # asked of the system, which may give less
_READ_BYTES = 256 * 1024
_REAP_S = 5.0
_END_S = 0.5  # between the end of its pipe and its own
_LOOK_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A job at the process."""

    job: Job
    sent_s: float  # monotonic


class ScorerProcess:
    """See the module. Constructing it starts the process.

    Raises:
        PluginError: the system does not let us.
    """

    def __init__(self, begin: wire.Begin) -> None:
        self.jobs: dict[int, Sent] = {}  # by number, in the order they were sent
        self.ready: wire.Ready | None = None
        self.ended = ""  # how, once it has
        self.is_exclusive = False  # has a job that must be alone
        self.began_s = time.monotonic()
        self._freed_s = self.began_s  # when it could begin its first job
        self._out = bytearray(wire.frame(wire.encode_begin(begin)))
        self._in = bytearray()
        self._process, self.jobs_fd, self.said_fd = _start()

    @property
    def has_to_write(self) -> bool:
        """Whether bytes wait to be taken by the process."""
        return bool(self._out) and not self.ended

    def send(self, number: int, job: Job) -> None:
        """Give it a job."""
        self.jobs[number] = Sent(job=job, sent_s=time.monotonic())
        self._out += wire.frame(wire.encode_job(number, job.samples))
        self.write()

    def write(self) -> None:
        """Hand over what the pipe has room for."""
        try:
            while self._out:
                del self._out[: os.write(self.jobs_fd, self._out[:_PIPE_BYTES])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._out.clear()  # its end shows when it is read from

    def read(self) -> Iterator[wire.Said]:
        """What it has said since the last call."""
        while not self.ended:
            try:
                data = os.read(self.said_fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.ended = _how_it_ended(self._process.pid)
                return
            self._in += data
            try:
                for content in wire.take_frames(self._in, limit=wire.MAX_SAID_BYTES):
                    yield wire.decode_said(content)
            except wire.WireError as error:
                self.ended = error.message

    def answered(self, number: int) -> Job | None:
        """A reply came: the job leaves; None when it does not have that job."""
        sent = self.jobs.pop(number, None)
        self._freed_s = time.monotonic()
        self.is_exclusive = self.is_exclusive and bool(self.jobs)
        return None if sent is None else sent.job

    def overdue(self, *, limit_s: float) -> list[int]:
        """Numbers of jobs that have run for longer than the limit."""
        latest_s = time.monotonic() - limit_s
        if self.ready is not None and self.ready.is_async:
            return [number for number, sent in self.jobs.items() if sent.sent_s < latest_s]
        first = next(iter(self.jobs), None)  # one at a time, in order
        if first is None or max(self.jobs[first].sent_s, self._freed_s) >= latest_s:
            return []
        return [first]

    def end(self, *, grace_s: float = 0.0) -> None:
        """Close its pipes, and kill it with what it started unless it ends within the grace."""
        for fd in (self.jobs_fd, self.said_fd):
            os.close(fd)
        if grace_s > 0:
            _wait_ended(self._process.pid, limit_s=grace_s)
        with suppress(ProcessLookupError):  # it, and all it started, have ended
            os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet, so nobody else has the number
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it ends when that lets it
            self._process.wait(_REAP_S)


def _start() -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and our ends of its pipes."""
    jobs_read, jobs_write = os.pipe()
    said_read, said_write = os.pipe()
    command = [sys.executable, "-P", "-m", "consumers.rewards.worker", str(jobs_read), str(said_write)]
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(jobs_read, said_write),
            env=public_environment() | {"PYTHONPATH": paths},
            start_new_session=True,
        )
    except OSError as error:
        for fd in (jobs_write, said_read):
            os.close(fd)
        raise PluginError(f"no process can be started for the plug-in: {error}") from error
    finally:
        os.close(jobs_read)
        os.close(said_write)
    for fd in (jobs_write, said_read):
        os.set_blocking(fd, False)
        _widen(fd)
    return process, jobs_write, said_read


def _widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:  # the user's pipes hold all they may
        return


def _wait_ended(pid: int, *, limit_s: float) -> bool:
    """Whether a child ends within the limit; it is not reaped."""
    until_s = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _how_it_ended(pid: int) -> str:
    if not _wait_ended(pid, limit_s=_END_S):
        return "it closed its end of the pipe"
    seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if seen is None or seen.si_code == os.CLD_EXITED:
        return f"the process ended with code {0 if seen is None else seen.si_status}"
    return f"the process was ended by {signal.Signals(seen.si_status).name}"
