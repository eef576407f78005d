"""The dashboard's server on a thread of its own, for tests."""

from __future__ import annotations

import asyncio
import threading

from ops.dashboard.runs import Runs
from ops.dashboard.server import DashboardSettings, serve


class Serving:
    """A context manager; `url` is where it listens."""

    def __init__(self, runs: Runs, *, settings: DashboardSettings | None = None) -> None:
        self._runs = runs
        self._settings = settings if settings is not None else DashboardSettings()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._ready.wait(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(serve(self._settings, self._runs, stop=self._stop, on_ready=self._listening))

    def _listening(self, url: str) -> None:
        self.url = url
        self._ready.set()
