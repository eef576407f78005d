"""One process that scores, as the reward consumer sees it: its pipes, and the jobs it has.

Role: starts, feeds, reads, times and ends a `consumers.rewards.worker`.
Data in: jobs; data out: what the process says.
Invariants: no call waits, but `end` for its grace; the time of a job begins when the process can begin it; the process
leads a group of its own, so what it started in it ends with it. It prints to where this process prints.
A process that is *held* by a call takes the processor time that others leave, and what it waits for its turn by that
does not count as time of the call, up to `_MOST_STRETCH` times the limit, or `_LEAST_STRETCH_S` more than it; it does
count as soon as jobs wait for its place.
Failure: a process that died, or said what cannot be read, shows as `ended`; `PluginError` when none can be started.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from consumers.rewards import wire
from consumers.rewards.forking import Forked, ForkServer
from consumers.rewards.pool import Job
from pipeline.priority import LOWEST, ran_s, session_nice, set_idle, set_session_nice, waited_s
from schemas.errors import PluginError

_PIPE_BYTES = 1024 * 1024  # asked of the system, which may give less
_READ_BYTES = 256 * 1024
_END_S = 0.5  # between the end of its pipe and its own
_LOOK_S = 0.005
_MOST_STRETCH, _LEAST_STRETCH_S = 3.0, 5.0
_WATCH_FROM_S = 0.005  # shorter calls are not looked at


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

    def __init__(self, begin: wire.Begin, *, server: ForkServer) -> None:
        self.jobs: dict[int, Sent] = {}  # by number, in the order they were sent
        self.ready: wire.Ready | None = None
        self.ended = ""  # how, once it has
        self.is_exclusive = False  # has a job that must be alone
        self.began_s = time.monotonic()
        self._freed_s = self.began_s  # when it could begin its first job
        self._out = bytearray(wire.frame(wire.encode_begin(begin)))
        self._in = bytearray()
        self.num_answered = 0
        self.is_held = False  # by a call that takes much longer than others
        self.is_spent = False  # to be ended as soon as may be
        self._withdrawn: set[int] = set()  # jobs in its pipe that another one has now
        self._watched: int | None = None  # the call that is watched
        self._watched_s = 0.0  # since when; a call counts from there, so that a late look harms nobody
        self._waited_s: float | None = None  # of its turn, at that time
        self._ran_s: float | None = None  # on a processor, at that time
        self._policy: int | None = None  # before it stood back
        self._session_nice: int | None = None
        self._server = server
        self._forked, self.jobs_fd, self.said_fd = _open_pipes(server)

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
                self.ended = self._how_it_ended()
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
        self.num_answered += 1
        self._watched = None
        self.is_exclusive = self.is_exclusive and bool(self.jobs)
        return None if sent is None else sent.job

    @property
    def is_async(self) -> bool:
        """Whether it has many jobs at a time."""
        return self.ready is not None and self.ready.is_async

    @property
    def busy_s(self) -> float:
        """Since when its first job runs; one at a time, in order. 0 without any."""
        first = next(iter(self.jobs.values()), None)
        return 0.0 if first is None else time.monotonic() - max(first.sent_s, self._freed_s)

    def is_late(self, *, usual_s: float) -> bool:
        """Whether its call takes longer than twice what is given, without what it waited for its turn meanwhile."""
        if self.is_async or self.busy_s < _WATCH_FROM_S or not self._is_watched():
            return False
        return self.busy_s >= 2 * usual_s and self._charged_s() >= 2 * usual_s

    def hold(self, *, stands_back: bool) -> list[Job]:
        """Do this call and no other. Returns the jobs behind the one that runs: somebody else has to do them.

        Args:
            stands_back: for all others; one that had no processor so far would never get one.
        """
        self.is_held = True
        if stands_back:
            self._stand_back()
        behind = list(self.jobs)[1:]
        self._withdrawn.update(behind)
        return [self.jobs.pop(number).job for number in behind]

    def _stand_back(self) -> None:
        pid = self._forked.pid
        with suppress(OSError):
            policy = os.sched_getscheduler(pid)
            self._policy = policy if policy != os.SCHED_IDLE and set_idle(True, pid=pid) else None
        nice = session_nice(pid)
        self._session_nice = nice if nice is not None and set_session_nice(LOWEST, pid=pid) else None

    def let_go(self) -> None:
        """The call that held it has returned. It is spent unless it is as before: with an empty pipe and its share."""
        self.is_held = False
        pid = self._forked.pid
        is_back = self._policy is None or set_idle(False, pid=pid)
        is_back = is_back and (self._session_nice is None or set_session_nice(self._session_nice, pid=pid))
        self.is_spent = not is_back or bool(self._withdrawn)

    def was_withdrawn(self, number: int) -> bool:
        """Whether a reply is to a job that another process has now."""
        return number in self._withdrawn

    def overdue(self, *, limit_s: float, is_wanted: bool = False) -> list[int]:
        """Numbers of jobs that have run for longer than the limit.

        Args:
            is_wanted: its place is, by jobs that wait for one: what it waits for its turn is time of the call, too.
        """
        if self.is_async:
            latest_s = time.monotonic() - limit_s
            return [number for number, sent in self.jobs.items() if sent.sent_s < latest_s]
        if self.busy_s <= limit_s or not self._is_watched():
            return []
        is_over = self._charged_s() > limit_s or self.busy_s > max(_MOST_STRETCH * limit_s, limit_s + _LEAST_STRETCH_S)
        is_over = is_over or (is_wanted and time.monotonic() - self._watched_s > limit_s)
        return [next(iter(self.jobs))] if is_over else []

    def end(self, *, grace_s: float = 0.0) -> None:
        """Close its pipes, and kill it with what it started unless it ends within the grace."""
        for fd in (self.jobs_fd, self.said_fd):
            os.close(fd)
        if grace_s > 0:
            self._wait_ended(limit_s=grace_s)
        self._server.kill(self._forked)

    def _is_watched(self) -> bool:
        """Whether its first job was watched before; it is from now on."""
        first = next(iter(self.jobs), None)
        if first is None or self._watched == first:
            return first is not None
        self._watched, self._watched_s = first, time.monotonic()
        self._waited_s, self._ran_s = waited_s(self._forked.pid), ran_s(self._forked.pid)
        return False

    def has_run(self, least_s: float) -> bool:
        """Whether its first job had a processor for so long since it is watched; unknown counts as so."""
        ran = None if self._ran_s is None else ran_s(self._forked.pid)
        return ran is None or self._ran_s is None or ran - self._ran_s >= least_s

    def _charged_s(self) -> float:
        """How long its first job is watched, without what it waited for its turn meanwhile."""
        waited = None if self._waited_s is None else waited_s(self._forked.pid)
        lost_s = 0.0 if waited is None or self._waited_s is None else max(0.0, waited - self._waited_s)
        return time.monotonic() - self._watched_s - lost_s

    def _wait_ended(self, *, limit_s: float) -> str:
        """How it ended; empty when it does not within the limit."""
        until_s = time.monotonic() + limit_s
        while not (how := self._server.how_it_ended(self._forked)) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return how

    def _how_it_ended(self) -> str:
        return self._wait_ended(limit_s=_END_S) or "it closed its end of the pipe"


def _open_pipes(server: ForkServer) -> tuple[Forked, int, int]:
    """A process, and our ends of its pipes."""
    jobs_read, jobs_write = os.pipe()
    said_read, said_write = os.pipe()
    try:
        forked = server.fork(jobs_fd=jobs_read, said_fd=said_write)
    except PluginError:
        for fd in (jobs_write, said_read):
            os.close(fd)
        raise
    finally:
        os.close(jobs_read)
        os.close(said_write)
    for fd in (jobs_write, said_read):
        os.set_blocking(fd, False)
        _widen(fd)
    return forked, jobs_write, said_read


def _widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:  # the user's pipes hold all they may
        return
