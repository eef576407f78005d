"""Runs a plug-in away from the thread that polls.

Role: sync plug-ins run on a few daemon threads, async ones on an event loop in a thread of its own.
Data in and out: jobs in; `Finished` out, in any order.
Invariants: a job that is not taken back comes out exactly once, unless the plug-in never returns; a plug-in that hangs
keeps its thread and nothing else; the process can always end.
Failure: whatever the plug-in raises comes out as `Finished.error`. This is the one boundary to user code, hence the
broad handlers; `SystemExit` is included, or a scorer that exits would silently take a thread with it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from consumers.rewards.plugin import AsyncCall, Call, Scorer
from consumers.rewards.settings import RewardSettings
from schemas.records import Sample
from topics.log import Envelope, TopicPartition

_T = TypeVar("_T")
_AHEAD = 16  # jobs queued per thread, so that a cheap scorer does not wait for the polling thread


@dataclass(kw_only=True, eq=False)
class Taken:
    """A sample on its way to a verdict."""

    envelope: Envelope
    sample: Sample
    num_retries: int = 0
    alone: bool = False  # its batch failed: score it by itself
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
    """A job that ended: with one raw value per sample, or with an error."""

    job: Job
    values: Sequence[object] = ()
    error: BaseException | None = None
    duration_ms: float


class Pool(Protocol):
    """Where jobs run."""

    def room(self) -> int:
        """Jobs that may be submitted now."""
        ...

    def submit(self, job: Job) -> None:
        """Take on one job; `room` says how many more."""
        ...

    def take_back(self) -> list[Job]:
        """Jobs submitted that no thread has begun."""
        ...

    def finished(self, *, wait_s: float = 0.0) -> list[Finished]:
        """What ended since the last call; waits at most `wait_s` for the first."""
        ...

    def close(self) -> None:
        """Begin nothing more; wait for nothing."""
        ...


def pool_for(scorer: Scorer, settings: RewardSettings) -> Pool:
    """The pool that fits a plug-in."""
    if scorer.async_call is not None:
        return LoopPool(scorer.async_call, limit=settings.max_in_flight)
    if scorer.call is None:
        raise ValueError("a scorer has a call, sync or async")
    return ThreadPool(scorer.call, num_threads=settings.num_threads)


@dataclass(eq=False)
class ThreadPool:
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
            self._outbox.put(_run(self.call, job))


@dataclass(eq=False)
class LoopPool:
    """An event loop in a daemon thread."""

    call: AsyncCall
    limit: int = field(kw_only=True)
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
        self._outbox.put(await _run_async(self.call, job))

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._loop is not None:
            self._loop.call_soon(self._loop.stop)


def _run(call: Call, job: Job) -> Finished:
    began_s = time.monotonic()
    try:
        values = call(job.samples)
    except BaseException as error:  # noqa: BLE001 - user code, see the module docstring
        return Finished(job=job, error=error, duration_ms=_since_ms(began_s))
    return _checked(job, values, began_s=began_s)


async def _run_async(call: Callable[[Sequence[Sample]], Awaitable[Sequence[object]]], job: Job) -> Finished:
    began_s = time.monotonic()
    try:
        values = await call(job.samples)
    except BaseException as error:  # noqa: BLE001 - user code, see the module docstring
        return Finished(job=job, error=error, duration_ms=_since_ms(began_s))
    return _checked(job, values, began_s=began_s)


def _checked(job: Job, values: object, *, began_s: float) -> Finished:
    """One value per sample, or an error that says so."""
    given = values if isinstance(values, Sequence) and not isinstance(values, str | bytes) else _listed(values)
    if given is None or len(given) != len(job.items):
        seen = type(values).__name__ if given is None else f"{len(given)} values"
        error = ValueError(f"score_batch returned {seen} for {len(job.items)} samples")
        return Finished(job=job, error=error, duration_ms=_since_ms(began_s))
    return Finished(job=job, values=given, duration_ms=_since_ms(began_s))


def _listed(values: object) -> Sequence[object] | None:
    """Arrays and tensors as a list, without knowing their library."""
    convert: object = getattr(values, "tolist", None)
    listed: object = convert() if callable(convert) else None
    return listed if isinstance(listed, list) else None


def _since_ms(began_s: float) -> float:
    return (time.monotonic() - began_s) * 1000


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
