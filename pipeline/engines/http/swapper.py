"""Pause, load, resume, each within the lease of the pause.

Role: the order of a swap at one server, and its way back.
Data in: a source of weights and the label of the tokens that follow. Data out: none, or which of two ways it failed.
Order: (1) begin, and drain where requests must not go on over a swap; (2) pause; (3) load and label; (4) resume.
Invariants: the pause is a lease (promise 10): its time is kept here, on the loop's thread, so it ends when the caller
is gone. Up to (3) a failure changes nothing and generation resumes; in (3) it may have left a mix, and then nothing is
resumed or sent before a whole load.
Failure: `SwapRefused`, `SwapBroken`. A process that dies between (2) and (4) leaves the server paused; its successor
lets it go on when it finds it (`Updates.prepare`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from pipeline.engines.http.exchange import Source
from pipeline.engines.http.sender import Sender
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.updates import InFlight, Updates
from pipeline.engines.http.wire import Wire
from pipeline.engines.vllm.exchange import SwapBroken, SwapRefused
from pipeline.engines.vllm.plugin import BROKEN, REFUSED
from schemas.errors import EngineError


class Swapper:
    """See the module. Lives on the loop's thread."""

    def __init__(self, wire: Wire, *, sender: Sender, settings: HttpSettings) -> None:
        self._wire = wire
        self._sender = sender
        self._settings = settings
        self._mixed = False  # the weights may be a mix: only a whole load ends the pause
        self.lease_s = settings.pause_lease_s
        self.pause_s = 0.0  # how long generation stood still in the last swap

    def begin_anew(self) -> None:
        """The server was found again: whatever it holds, nobody is served before a load."""
        self._mixed = False

    async def swap(self, updates: Updates, *, in_flight: InFlight, source: Source, label: str, salt: str) -> None:
        """See the module.

        Args:
            salt: of the prefix cache of requests that are sent after it.

        Raises:
            SwapRefused: nothing was changed, generation goes on.
            SwapBroken: the weights may be a mix.
        """
        loop = asyncio.get_running_loop()
        try:
            await updates.begin(self._wire)
        except EngineError as error:
            raise SwapRefused(f"{error.message}; the old version is still served", hint=error.hint) from error
        if in_flight == "drain" or not updates.can_keep:
            await self._sender.quiesce(limit_s=self._settings.drain_limit_s if in_flight == "drain" else 0.0)
        ends_s = loop.time() + self.lease_s
        paused_s = loop.time()
        try:
            await self._until(ends_s, updates.pause(self._wire, in_flight=in_flight), what="the pause")
        except EngineError as error:
            await self._go_on(updates)
            raise SwapRefused(f"{error.message}; the old version is still served", hint=error.hint) from error
        await self._load(updates, source=source, label=label, ends_s=ends_s)
        self._sender.salt = salt
        self._mixed = False
        await self._go_on(updates)
        self.pause_s = loop.time() - paused_s

    async def _load(self, updates: Updates, *, source: Source, label: str, ends_s: float) -> None:
        was_mixed, self._mixed = self._mixed, True
        limit_s = max(0.1, ends_s - asyncio.get_running_loop().time())
        load = updates.load(self._wire, source=source, label=label, limit_s=limit_s)
        try:
            await self._until(ends_s, load, what="the update")
        except EngineError as error:
            if REFUSED in error.message:
                self._mixed = was_mixed
                await self._go_on(updates)
                reason = error.message.partition(REFUSED)[2]
                raise SwapRefused(
                    f"the server refused the weights: {reason}; the old version is still served"
                ) from error
            reason = error.message.partition(BROKEN)[2] or error.message
            raise SwapBroken(f"the load failed half-way: {reason}", hint=error.hint) from error

    async def _go_on(self, updates: Updates) -> None:
        """Resume, unless the weights may be a mix. A resume that fails is found by the next look at the server."""
        if self._mixed:
            return
        with suppress(EngineError):
            ends_s = asyncio.get_running_loop().time() + self.lease_s
            await self._until(ends_s, updates.resume(self._wire), what="the resume")
        self._sender.open_gate()

    async def _until(self, ends_s: float, call: Awaitable[None], *, what: str) -> None:
        try:
            async with asyncio.timeout_at(ends_s):
                await call
        except TimeoutError as error:
            raise EngineError(f"{what} was not done when the lease of the pause, {self.lease_s:g} s, ended") from error
