"""Runs a plug-in in processes that are killed when a call takes too long, and replaced.

Role: the pool for code that is not ours. A sync plug-in scores one job at a time in each process, an async one many.
Data in and out: jobs in; `Finished` out, in any order.
Invariants: a job that is not taken back comes out exactly once, after its time limit at the latest; a killed process
is replaced at once, so the pool keeps its size, and jobs that merely waited in it go to another one. Of an async
plug-in that blocks its loop nobody knows which job did it: those that were in it are tried again, each in a process of
its own. Jobs go ahead to a process only as far as keeps it busy between two turns of the polling thread.
A call that takes much longer than others holds its process: the jobs behind it go to others, it takes the processor
time that others leave (if it worked for long, and did not only have no turn), and up to `held_workers` further
processes are started for those that wait. It still has all of
its time limit: long is not wrong. What it waits for the processors is not counted as its time, unless jobs wait for a
process and no more may be started: then the one held longest ends when its limit is over by the clock on the wall. The
last process that is not held is left alone: nobody could take over from it.
Failure: `PluginError`, `SettingsError` from `start` and `finished` when the plug-in cannot be loaded.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator

from consumers.rewards import verdict, wire
from consumers.rewards.call import Answer
from consumers.rewards.forking import ForkServer
from consumers.rewards.pool import Finished, Held, Job
from consumers.rewards.scorer_process import ScorerProcess
from consumers.rewards.settings import RewardSettings
from consumers.rewards.verdict import Trouble
from schemas.errors import PluginError, SettingsError

_AHEAD_MS = 20.0  # work that a process has in its pipe
_MOST_AHEAD = 64
_GROW_AFTER_S = 0.1  # of jobs waiting: then one more process is worth its start
_MOST_FAILED_STARTS = 3  # in a row
_GRACE_S = 0.5  # for an orderly end
_LOOP_GRACE_S = 1.0  # an event loop ends its calls itself; one that does not is blocked
_POLL_S = 0.05  # between two looks at the time limits
_HELD_TIMES = 10.0  # so many times the usual time, twice, is long for a call
_HELD_LEAST_S = 0.02
_KNOWN = 8  # calls, before there is a usual time
_UNKNOWN_S = 15.0  # what is taken for it until then


class ProcessPool:
    """See the module. `start` first; all methods are for one thread.

    Args:
        on_lost: told of a process that was killed or died: why, and the jobs that it had begun.
    """

    def __init__(self, settings: RewardSettings, *, on_lost: Callable[[str, list[Job]], None]) -> None:
        self._settings = settings
        self._on_lost = on_lost
        self._begin = wire.Begin(settings=settings, python_path=os.environ.get("PYTHONPATH"))
        self._processes: list[ScorerProcess] = []
        self._backlog: deque[Job] = deque()
        self._backlog_since_s: float | None = None
        self._num_inside = 0
        self._num_jobs = 0  # ever; numbers them
        self._num_failed_starts = 0
        self._mean_ms = 0.0  # of a call
        self._usual_ms = 0.0  # of a call, without what it waited for a processor
        self._first_ms = 0.0  # longest first call of a process: it may load what others find loaded
        self._num_held_ever = 0
        self._last_late: ScorerProcess | None = None  # would be held if others could stand in for it
        self._num_replies = 0
        self._server = ForkServer()
        self._ready: wire.Ready | None = None

    @property
    def ready(self) -> wire.Ready | None:
        """What the plug-in is; None before it was loaded."""
        return self._ready

    @property
    def num_processes(self) -> int:
        """Processes there are."""
        return len(self._processes)

    @property
    def num_held(self) -> int:
        """Those among them that a long call holds, and that others stand in for."""
        return sum(process.is_held for process in self._processes)

    def held(self) -> Held:
        last = self._last_late
        num = self.num_held + (last is not None)
        num_waiting = len(self._backlog) + (0 if last is None else max(0, len(last.jobs) - 1))
        is_short = num_waiting > 0 and num > self._spare()
        return Held(num=num, num_ever=self._num_held_ever, most=self._most() + self._spare(), is_short=is_short)

    def start(self, *, is_stopped: Callable[[], bool]) -> None:
        """Load the plug-in in a first process; returns without when told to stop.

        Raises:
            PluginError, SettingsError: it cannot be loaded, or not within `load_timeout_s`.
        """
        self._hire()
        while self._ready is None and not is_stopped():
            self.finished(wait_s=_POLL_S)

    def room(self) -> int:
        return self._most() * self._width() - (self._num_inside - self.num_held)

    def submit(self, job: Job) -> None:
        self._num_inside += 1
        self._backlog.append(job)
        self._feed()

    def take_back(self) -> list[Job]:
        jobs = list(self._backlog)
        self._backlog.clear()
        self._num_inside -= len(jobs)
        return jobs

    def finished(self, *, wait_s: float = 0.0) -> list[Finished]:
        ended: list[Finished] = []
        until_s = time.monotonic() + wait_s
        while True:
            left_s = 0.0 if ended else max(0.0, until_s - time.monotonic())
            ended += self._exchange(min(left_s, _POLL_S))
            self._hold_long()
            ended += self._end_late()  # after what they said was read: this thread may have been busy for long
            self._hire()
            self._feed()
            if ended or time.monotonic() >= until_s:
                self._num_inside -= len(ended)
                return ended

    def close(self) -> None:
        for process in self._processes:
            process.end(grace_s=0.0 if process.jobs or process.ready is None else _GRACE_S)
        self._processes.clear()
        self._server.close()

    def _most(self) -> int:
        """Processes there may be."""
        limit = None if self._ready is None else self._ready.max_workers
        return self._settings.num_workers if limit is None else min(self._settings.num_workers, limit)

    def _spare(self) -> int:
        """Processes there may be beyond that, in place of held ones."""
        stated = self._ready is not None and self._ready.max_workers is not None  # it knows why
        return 0 if stated else self._settings.held_workers

    def _is_full(self) -> bool:
        """Whether no process may be started."""
        num = len(self._processes)
        return num - self.num_held >= self._most() or num >= self._most() + self._spare()

    def _width(self) -> int:
        """Jobs a process has at most."""
        if self._ready is not None and self._ready.is_async:
            return math.ceil(self._settings.max_in_flight / self._most())
        return max(1, min(_MOST_AHEAD, math.ceil(_AHEAD_MS / max(self._mean_ms, 0.001))))

    def _feed(self) -> None:
        """Give waiting jobs to the processes that have room."""
        while self._backlog:
            process = self._free_process(self._backlog[0])
            if process is None:
                break
            job = self._backlog.popleft()
            self._num_jobs += 1
            process.is_exclusive = self._must_be_alone(job)
            process.send(self._num_jobs % 2**32, job)
        if not self._backlog:
            self._backlog_since_s = None
        elif self._backlog_since_s is None:
            self._backlog_since_s = time.monotonic()

    def _free_process(self, job: Job) -> ScorerProcess | None:
        free = [one for one in self._processes if one.ready is not None and _takes_jobs(one)]
        best = min(free, key=lambda one: len(one.jobs), default=None)
        if best is None or len(best.jobs) >= (1 if self._must_be_alone(job) else self._width()):
            return None
        return best

    def _must_be_alone(self, job: Job) -> bool:
        is_async = self._ready is not None and self._ready.is_async
        return is_async and any(item.alone for item in job.items)

    def _hire(self) -> None:
        """Start the first process, and one more when jobs wait though all others are at work; let go of those that are
        too many, as held ones came back."""
        for process in [one for one in self._processes if one.is_spent and not one.ended]:
            self._retire(process)
        if not self._processes:
            self._start_one()
            return
        since_s = self._backlog_since_s
        waited = since_s is not None and time.monotonic() - since_s >= _GROW_AFTER_S
        starting = any(process.ready is None for process in self._processes)
        if waited and not starting and not self._is_full():
            self._start_one()
        idle = [one for one in self._processes if not one.jobs and not one.is_held and not one.ended]
        if idle and len(self._processes) - self.num_held > self._most():
            self._retire(idle[-1])

    def _start_one(self) -> None:
        self._processes.append(ScorerProcess(self._begin, server=self._server))

    def _retire(self, process: ScorerProcess) -> None:
        self._processes.remove(process)
        process.end()

    def _hold_long(self) -> None:
        """See the module."""
        usual_s = self._long_s()
        self._last_late = None
        for process in self._processes:
            first_s = 0.0 if process.num_answered else self._first_ms / 1000
            if process.is_held or process.ended or not process.is_late(usual_s=max(usual_s, first_s)):
                continue
            if self.num_held + 1 >= self._most() + self._spare():
                self._last_late = process
                continue
            self._num_held_ever += 1
            self._backlog.extendleft(reversed(process.hold(stands_back=process.has_run(usual_s))))

    def _wanted(self) -> ScorerProcess | None:
        """The process held longest, when jobs wait for its place.

        One that had a processor for less than is long for a call may be at an ordinary one: it only had no turn.
        """
        if not self.held().is_short or any(process.ready is None for process in self._processes):
            return None
        held = (one for one in self._processes if one.is_held and one.has_run(self._long_s()))
        return max(held, key=lambda one: one.busy_s, default=None)

    def _long_s(self) -> float:
        """Half of what is long for a call."""
        usual_s = max(_HELD_LEAST_S, _HELD_TIMES * self._usual_ms / 1000)
        return max(usual_s, _UNKNOWN_S) if self._num_replies < _KNOWN else usual_s

    def _exchange(self, wait_s: float) -> list[Finished]:
        """Write and read what is possible, waiting at most so long for something."""
        poll = select.poll()
        by_fd: dict[int, ScorerProcess] = {}
        for process in self._processes:
            poll.register(process.said_fd, select.POLLIN)
            by_fd[process.said_fd] = process
            if process.has_to_write:
                poll.register(process.jobs_fd, select.POLLOUT)
                by_fd[process.jobs_fd] = process
        ended: list[Finished] = []
        for fd, _ in poll.poll(wait_s * 1000):
            process = by_fd[fd]
            if fd == process.jobs_fd:
                process.write()
            else:
                ended += self._hear(process)
        return ended

    def _hear(self, process: ScorerProcess) -> Iterator[Finished]:
        for said in process.read():
            if isinstance(said, wire.Ready):
                process.ready = self._ready = said
                self._num_failed_starts = 0
            elif isinstance(said, wire.Refused):
                kind = SettingsError if said.kind == "settings" else PluginError
                raise kind(said.message, hint=said.hint)
            else:
                yield from self._replied(process, said)
        if process.ended:
            yield from self._died(process)

    def _replied(self, process: ScorerProcess, reply: wire.Reply) -> Iterator[Finished]:
        if process.was_withdrawn(reply.number):
            return
        is_first = process.num_answered == 0
        job = process.answered(reply.number)
        if process.is_held:
            process.let_go()
        verdicts, trouble = reply.answer.verdicts, reply.answer.trouble
        if job is None or (trouble is None and len(verdicts) != len(job.items)):
            process.ended = f"it answered job {reply.number} with {len(verdicts)} verdicts"
            if job is not None:
                yield Finished(job=job, answer=Answer(trouble=verdict.process_died(process.ended)))
            return
        self._num_replies += 1
        ran_ms = max(0.0, reply.answer.duration_ms - reply.waited_ms)
        self._mean_ms += (reply.answer.duration_ms - self._mean_ms) / 16
        self._usual_ms += (ran_ms - self._usual_ms) / 16
        self._first_ms = max(self._first_ms, ran_ms) if is_first else self._first_ms
        yield Finished(job=job, answer=reply.answer)

    def _died(self, process: ScorerProcess) -> Iterator[Finished]:
        if process.ready is None:
            self._num_failed_starts += 1
            if self._num_failed_starts >= _MOST_FAILED_STARTS:
                raise PluginError(
                    f"the plug-in {self._settings.plugin!r} could not be loaded {self._num_failed_starts} times in a "
                    f"row: {process.ended}",
                    hint="what it printed is in the log of this stage",
                )
        begun = list(process.jobs) if process.ready is not None and process.ready.is_async else list(process.jobs)[:1]
        yield from self._lose(process, begun, trouble=verdict.process_died(process.ended))

    def _end_late(self) -> list[Finished]:
        """Kill the processes in which a call, or the load of the plug-in, takes too long."""
        ended: list[Finished] = []
        wanted = self._wanted()
        for process in list(self._processes):
            if process.ready is None:
                if time.monotonic() - process.began_s > self._settings.load_timeout_s:
                    raise PluginError(
                        f"the plug-in {self._settings.plugin!r} was not loaded within "
                        f"{self._settings.load_timeout_s:g} s",
                        hint="raise rewards.NAME.load_timeout_s if it needs longer",
                    )
                continue
            limit_s = self._settings.timeout_s + (_LOOP_GRACE_S if process.ready.is_async else 0.0)
            late = process.overdue(limit_s=limit_s, is_wanted=process is wanted)
            if late:
                ended += self._lose(process, late, trouble=verdict.no_answer(self._settings.timeout_s))
        return ended

    def _lose(self, process: ScorerProcess, guilty: list[int], *, trouble: Trouble) -> Iterator[Finished]:
        """A process is at its end: its jobs end with it (`guilty`) or go to another one; a new one takes its place."""
        self._processes.remove(process)
        process.end()
        lost = [process.jobs.pop(number).job for number in guilty]
        rest = [sent.job for sent in process.jobs.values()]
        is_async = process.ready is not None and process.ready.is_async
        for item in (item for job in (*lost, *rest) for item in job.items):
            item.alone = item.alone or is_async
        self._backlog.extendleft(reversed(rest))
        if process.ready is not None:
            self._on_lost(trouble.said, lost)
            if not self._is_full():
                self._start_one()
        for job in lost:
            yield Finished(job=job, answer=Answer(trouble=trouble))


def _takes_jobs(process: ScorerProcess) -> bool:
    return not (process.is_exclusive or process.is_held or process.is_spent or process.ended)
