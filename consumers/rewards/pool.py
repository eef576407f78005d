"""Where a plug-in runs: away from the thread that polls.

Role: what every pool has in common, and the pools in this process: sync plug-ins on a few daemon threads, async ones on
an event loop in a thread of its own. `process_pool` has the one whose calls can be ended.
Data in and out: jobs in; `Finished` out, in any order.
Invariants: a job that is not taken back comes out exactly once, unless the plug-in never returns; a plug-in that hangs
keeps its thread and nothing else; the process can always end.
Failure: whatever the plug-in raises comes out as trouble of the answer (`consumers.rewards.call`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from consumers.rewards.call import Answer, AsyncCall, Call, call_close, call_now, call_within
from schemas.records import Sample
from topics.log import Envelope, TopicPartition

_T = TypeVar("_T")
_END_S = 1.0  # for what a plug-in does at its end
_AHEAD = 16  # jobs queued per thread, so that a cheap scorer does not wait for the polling thread


@dataclass(kw_only=True, eq=False)
class Taken:
    """A sample on its way to a verdict."""

    envelope: Envelope
    sample: Sample
    num_retries: int = 0
    num_lost: int = 0  # tries that ended without any answer
    alone: bool = False  # what it was scored with failed: score it by itself
    abandoned: bool = False  # its partition went to another member
    started_s: float | None = None  # monotonic, when scoring it began first
    reported_stuck: bool = False

    @property
    def place(self) -> TopicPartition:
        """The partition it came from."""
        return (self.envelope.topic, self.envelope.partition)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """Samples given to the plug-in in one call."""

    items: tuple[Taken, ...]
    is_probe: bool = False

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples to score, in order."""
        return tuple(item.sample for item in self.items)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A job that ended."""

    job: Job
    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Held:
    """Processes that a call holds which takes much longer than others; none where calls are in this process."""

    num: int = 0
    num_ever: int = 0  # such calls until now
    most: int = 0  # processes that there may be
    is_short: bool = False  # jobs wait, and no process may be started for them


class Pool(Protocol):
    """Where jobs run."""

    def room(self) -> int:
        """Jobs that may be submitted now."""
        ...

    def submit(self, job: Job) -> None:
        """Take on one job; `room` says how many more."""
        ...

    def take_back(self) -> list[Job]:
        """Jobs submitted that nothing has begun, or is about to begin."""
        ...

    def finished(self, *, wait_s: float = 0.0) -> list[Finished]:
        """What ended since the last call; waits at most `wait_s` for the first.

        Raises:
            PluginError: the plug-in cannot be run any more.
        """
        ...

    def held(self) -> Held:
        """Processes that a long call holds, now."""
        ...

    def close(self) -> None:
        """Begin nothing more; wait for nothing."""
        ...


class _NeverHeld:
    """What a pool in this process says of held ones."""

    def held(self) -> Held:
        return Held()


@dataclass(eq=False)
class ThreadPool(_NeverHeld):
    """A few daemon threads, started when there is work. `submit`, `finished` and `take_back` are for one thread."""

    call: Call
    num_threads: int = field(kw_only=True)
    _inbox: queue.SimpleQueue[Job | None] = field(default_factory=queue.SimpleQueue, init=False)
    _outbox: queue.SimpleQueue[Finished] = field(default_factory=queue.SimpleQueue, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _num_inside: int = field(default=0, init=False)

    def room(self) -> int:
        return self.num_threads * _AHEAD - self._num_inside

    def submit(self, job: Job) -> None:
        self._num_inside += 1
        self._inbox.put(job)
        if len(self._threads) < min(self.num_threads, self._num_inside):
            thread = threading.Thread(target=self._work, name=f"scorer-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take_back(self) -> list[Job]:
        jobs = [job for job in _drain(self._inbox) if job is not None]
        self._num_inside -= len(jobs)
        return jobs

    def finished(self, *, wait_s: float = 0.0) -> list[Finished]:
        ended = _drain(self._outbox, wait_s=wait_s)
        self._num_inside -= len(ended)
        return ended

    def close(self) -> None:
        self.take_back()
        for _ in self._threads:
            self._inbox.put(None)

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            self._outbox.put(Finished(job=job, answer=call_now(self.call, job.samples)))


@dataclass(eq=False)
class LoopPool(_NeverHeld):
    """An event loop in a daemon thread."""

    call: AsyncCall
    limit: int = field(kw_only=True)
    limit_s: float = field(kw_only=True)  # longest time of a call
    aclose: Callable[[], Awaitable[object]] | None = field(default=None, kw_only=True)  # the plug-in's end
    _outbox: queue.SimpleQueue[Finished] = field(default_factory=queue.SimpleQueue, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _num_inside: int = field(default=0, init=False)

    def room(self) -> int:
        return self.limit - self._num_inside

    def submit(self, job: Job) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_turn_loop, args=(self._loop,), name="scorer-loop", daemon=True).start()
        self._num_inside += 1
        self._loop.call_soon_threadsafe(self._begin, job)

    def take_back(self) -> list[Job]:
        return []  # each has begun

    def finished(self, *, wait_s: float = 0.0) -> list[Finished]:
        ended = _drain(self._outbox, wait_s=wait_s)
        self._num_inside -= len(ended)
        return ended

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, job: Job) -> None:
        task = asyncio.ensure_future(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, job: Job) -> None:
        answer = await call_within(self.call, job.samples, limit_s=self.limit_s)
        self._outbox.put(Finished(job=job, answer=answer))

    def _cancel(self) -> None:
        ended = asyncio.ensure_future(self._end(tuple(self._tasks)))
        ended.add_done_callback(lambda done: done.get_loop().stop())

    async def _end(self, tasks: tuple[asyncio.Task[None], ...]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_END_S) if tasks else None
        if self.aclose is not None:
            await call_close(self.aclose, limit_s=_END_S)


def _turn_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _drain(source: queue.SimpleQueue[_T], *, wait_s: float = 0.0) -> list[_T]:
    taken: list[_T] = []
    try:
        if wait_s > 0:
            taken.append(source.get(timeout=wait_s))
        while True:
            taken.append(source.get_nowait())
    except queue.Empty:
        return taken
