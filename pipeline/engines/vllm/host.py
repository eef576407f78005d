"""The thread that runs vLLM: requests in, ended requests out, swaps between two of its steps.

Role: the one adapter over `vllm.AsyncLLM`; its loose types end here. vLLM's core runs in a process of its own.
Data in: requests and paths of sealed states. Data out: `Ended` requests, or the reason why there will be none.
Invariants: each request that was handed over comes back once. The version of each token is vLLM's own stamp, which it
changes only while generation is paused. A pause is a lease (promise 10): it ends by itself after `pause_lease_s`.
The prefix cache is keyed by the load: a request carries the number of the load before it as its cache salt, so that
no request reads what other weights computed, while requests in flight keep their own cache.
Failure: `EngineError`; `SwapRefused`, `SwapBroken` for a swap.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.engines.pressure import EnginePressure
from pipeline.engines.vllm.client import Client, VllmErrors, open_client
from pipeline.engines.vllm.exchange import EndedRequest, NewRequest, SwapBroken, SwapRefused
from pipeline.engines.vllm.plugin import BROKEN, REFUSED
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.engines.vllm.stats import PressureLog
from schemas.errors import EngineError

T = TypeVar("T")

_CLOSE_LIMIT_S = 10.0
_LOOK_S = 0.2  # between two looks whether vLLM is alive
_NO_LABEL = "none"  # of weights that are not served; known to nobody, so tokens with it are an error


class _Late(EngineError):
    """A call was not done in time."""


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """What vLLM is started with."""

    model_dir: Path
    device: str
    dtype: str
    max_sequences: int
    context_tokens: int
    num_threads: int
    watch_pressure: bool = False
    vllm: VllmSettings


class Host:
    """A running vLLM. Called from one thread; `ended` may be waited on."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._ended: queue.SimpleQueue[EndedRequest | EngineError] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._client: Client | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.lease_s = settings.vllm.pause_lease_s
        self._salt = 0
        self._label = _NO_LABEL  # of the weights that are loaded
        self.pause_s = 0.0  # how long generation stood still in the last swap
        self._mixed = False  # the weights may be a mix: only a whole load ends the pause
        self._stats = PressureLog() if settings.watch_pressure else None
        self.failure: EngineError | None = None  # set once nothing more will come

    def start(self) -> None:
        """Start vLLM and wait until it answers.

        Raises:
            EngineError: vLLM cannot serve this model, or takes too long.
        """
        self._thread.start()
        self.call(self._start(), limit_s=self._settings.vllm.start_limit_s, what="the start of vLLM")

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """Hand requests over; they come back through `take`."""
        self._loop.call_soon_threadsafe(self._submit, list(requests))

    def abort(self, keys: Sequence[str]) -> None:
        """End requests where they are; they come back with what they have."""
        self._loop.call_soon_threadsafe(self._spawn, self._abort(list(keys)))

    def take(self, *, wait_s: float) -> list[EndedRequest]:
        """What has ended; waits at most `wait_s` for the first.

        Raises:
            EngineError: vLLM has failed.
        """
        found: list[EndedRequest] = []
        try:
            item = self._ended.get(timeout=wait_s) if wait_s > 0 else self._ended.get_nowait()
            while True:
                if isinstance(item, EngineError):
                    raise item
                found.append(item)
                item = self._ended.get_nowait()
        except queue.Empty:
            return found

    def swap(self, path: str, *, label: str, ties: Mapping[str, str]) -> None:
        """Pause, load the sealed file, stamp `label` from the next token on, resume.

        Raises:
            SwapRefused: nothing was changed, generation goes on.
            SwapBroken: the weights may be a mix; generation is paused until a whole load.
        """
        update: dict[str, object] = {"path": path, "ties": dict(ties), "verify": self._settings.vllm.verify}
        # The coroutine keeps its own time, so the pause ends even when this thread is gone.
        try:
            self.call(self._swap(update, label=label), limit_s=2 * self.lease_s + _CLOSE_LIMIT_S, what="the swap")
        except _Late as error:  # the thread itself hangs
            self._fail(error.message)
            raise SwapBroken(error.message) from error

    def close(self) -> None:
        """End vLLM and its thread; a second call does nothing."""
        if not self._thread.is_alive():
            return
        try:
            self.call(self._stop(), limit_s=_CLOSE_LIMIT_S, what="the end of vLLM")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_LIMIT_S)

    @property
    def dead(self) -> bool:
        """Whether this vLLM will never answer again."""
        return self.failure is not None or self._client is None or self._client.dead

    def call(self, work: Coroutine[object, object, T], *, limit_s: float, what: str) -> T:
        """Run a coroutine on vLLM's thread.

        Raises:
            EngineError: it takes longer than `limit_s`, or raises one.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout=limit_s)
        except FutureTimeout as error:
            future.cancel()
            raise _Late(f"{what} took longer than {limit_s:g} s") from error

    @property
    def pressure(self) -> EnginePressure | None:
        """What vLLM says of its load; None: it was not asked to, or has not yet."""
        return None if self._stats is None else self._stats.latest

    @property
    def client(self) -> Client:
        """The connection to vLLM.

        Raises:
            EngineError: it is not started.
        """
        if self._client is None:
            raise EngineError("vLLM is not running", hint="load a published version; that starts it again")
        return self._client

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _start(self) -> None:
        self._client = await open_client(
            model_dir=self._settings.model_dir,
            device=self._settings.device,
            dtype=self._settings.dtype,
            max_sequences=self._settings.max_sequences,
            context_tokens=self._settings.context_tokens,
            num_threads=self._settings.num_threads,
            stats=self._stats,
            settings=self._settings.vllm,
        )

    async def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _submit(self, requests: list[NewRequest]) -> None:
        for request in requests:
            self._tasks[request.key] = self._loop.create_task(self._serve(request, salt=str(self._salt)))

    async def _serve(self, request: NewRequest, *, salt: str) -> None:
        try:
            self._ended.put(await self.client.generate(request, salt=salt))
        except VllmErrors as error:
            self._fail(f"vLLM failed: {type(error).__name__}: {error}")
        finally:
            self._tasks.pop(request.key, None)

    async def _abort(self, keys: list[str]) -> None:
        # A task that has not begun yet must reach vLLM first, else there is nothing there to abort.
        await asyncio.sleep(0)
        await self.client.abort([key for key in keys if key in self._tasks])

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(self._guard(work))
        self._tasks[f"job-{id(task)}"] = task
        task.add_done_callback(lambda done: self._tasks.pop(f"job-{id(done)}", None))

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except VllmErrors as error:
            self._fail(f"vLLM failed: {type(error).__name__}: {error}")

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = EngineError(message, hint="load a published version; that starts vLLM again")
            self._ended.put(self.failure)

    async def _swap(self, update: dict[str, object], *, label: str) -> None:
        client = self.client
        ends_s = self._loop.time() + self.lease_s  # of the lease
        try:
            await self._until(ends_s, client.start_update(), what="the start of the update")
            await self._until(ends_s, client.pause(), what="the pause")
            paused_s = self._loop.time()
        except EngineError as error:
            await self._resume_unless_mixed()
            raise SwapRefused(f"{error.message}; the old version is still served", hint=error.hint) from error
        was_mixed, self._mixed = self._mixed, True
        try:
            await self._until(ends_s, client.update(update, label=label), what="the update")
        except _Late as error:  # it may still be at it, so nothing can be loaded over it either
            self._fail(error.message)
            raise SwapBroken(f"the load did not end: {error.message}") from error
        except EngineError as error:
            if REFUSED not in error.message:
                reason = error.message.partition(BROKEN)[2] or error.message
                raise SwapBroken(f"the load failed half-way: {reason}") from error
            await self._until(ends_s, client.relabel(self._label), what="the old label")
            self._mixed = was_mixed
            await self._resume_unless_mixed()
            reason = error.message.partition(REFUSED)[2]
            raise SwapRefused(f"vLLM refused the weights: {reason}; the old version is still served") from error
        self._salt += 1
        self._label = label
        self._mixed = False
        await self._resume_unless_mixed()
        self.pause_s = self._loop.time() - paused_s

    async def _resume_unless_mixed(self) -> None:
        if self._mixed:
            return
        ends_s = self._loop.time() + self.lease_s
        await self._until(ends_s, self.client.resume(), what="the resume")

    async def _until(self, ends_s: float, call: Awaitable[None], *, what: str) -> None:
        task = asyncio.ensure_future(call)
        while not task.done():
            # A core that dies answers no call that was under way, so its death is looked for.
            if self.client.dead or self._loop.time() >= ends_s:
                task.cancel()
                if self.client.dead:
                    raise EngineError(f"vLLM died before {what} was done")
                raise _Late(f"{what} was not done when the lease of the pause, {self.lease_s:g} s, ended")
            await asyncio.wait({task}, timeout=min(_LOOK_S, ends_s - self._loop.time()))
        try:
            task.result()
        except VllmErrors as error:
            raise EngineError(f"{what} failed: {error}") from error
