"""An asyncio loop on a thread of its own, called from a thread that has none.

Role: lets a blocking caller run coroutines that keep their own time.
Invariants: a call returns within its limit; what it started goes on or is cancelled, never forgotten half-way.
Failure: `EngineError` for a call that is too late, and whatever the coroutine raises.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from schemas.errors import EngineError

T = TypeVar("T")
_JOIN_LIMIT_S = 10.0


class LoopThread:
    """See the module."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it still takes work."""
        return self._thread.is_alive() and not self._loop.is_closed()

    def call(self, work: Coroutine[object, object, T], *, limit_s: float, what: str) -> T:
        """Run a coroutine and wait for it.

        Raises:
            EngineError: it takes longer than `limit_s`, or raises one.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout=limit_s)
        except FutureTimeout as error:
            future.cancel()
            raise EngineError(f"{what} took longer than {limit_s:g} s") from error

    def soon(self, work: Callable[[], object]) -> None:
        """Run something on the loop's thread, without waiting."""
        self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """End the thread; what still runs is cancelled. A second call does nothing."""
        if self.running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_LIMIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()
