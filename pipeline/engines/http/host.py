"""The thread that talks to one server, called from a thread that has no loop.

Role: `HttpHost` over a real connection: finds the server, sends, swaps, probes.
Data in: requests, and sources of weights with their labels. Data out: `Ended` requests, or the reason why there will be
none.
Invariants: the caller waits within limits; requests go on while it does something else.
Failure: `EngineError`; `SwapRefused`, `SwapBroken` for a swap. A server that is lost stays so until `revive`.
"""

from __future__ import annotations

import queue
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pipeline.engines.http.api_key import ApiKey
from pipeline.engines.http.attach import Examiner, identify, wait_until_healthy
from pipeline.engines.http.choosing import choose_in_flight, choose_updates
from pipeline.engines.http.dialects.base import Dialect
from pipeline.engines.http.exchange import Ended, Scored, ServerFacts, Source
from pipeline.engines.http.loop import LoopThread
from pipeline.engines.http.sender import REVIVE_HINT, Sender
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.swapper import Swapper
from pipeline.engines.http.updates import InFlight, Updates
from pipeline.engines.http.watching import MetricsWatch
from pipeline.engines.http.wire import Wire
from pipeline.engines.pressure import EnginePressure
from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError

T = TypeVar("T")
_SLACK_S = 10.0  # coroutines keep limits of their own; this is for a loop that is stuck


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A server that can be used."""

    dialect: Dialect
    updates: Updates | None
    in_flight: InFlight
    facts: ServerFacts


class Host:
    """See the module.

    Args:
        prompts: fixed ones, within the model's vocabulary and context, to examine a server with.
        watch_pressure: whether the server is asked how loaded it is.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: ApiKey,
        settings: HttpSettings,
        prompts: list[list[int]],
        watch_pressure: bool = False,
    ) -> None:
        self._settings = settings
        self._prompts = prompts
        self._ended: queue.SimpleQueue[Ended | EngineError] = queue.SimpleQueue()
        self._thread = LoopThread("http-engine")
        self._wire = Wire(base_url, key=key, settings=settings)
        self._sender = Sender(self._wire, settings=settings, on_end=self._ended.put, on_lost=self._lost)
        self._watch = MetricsWatch(self._wire, is_busy=self._sender.is_busy) if watch_pressure else None
        self._swapper = Swapper(self._wire, sender=self._sender, settings=settings)
        self._found: _Found | None = None
        self._salt, self._serial = secrets.token_hex(4), 0
        self.failure: EngineError | None = None  # set once nothing more will come

    @property
    def dead(self) -> bool:
        """See `HttpHost.dead`."""
        return self.failure is not None or self._found is None

    @property
    def facts(self) -> ServerFacts:
        """See `HttpHost.facts`."""
        return self._server().facts

    @property
    def pause_s(self) -> float:
        """See `HttpHost.pause_s`."""
        return self._swapper.pause_s

    @property
    def pressure(self) -> EnginePressure | None:
        """What the server says of its load; None: it was not asked, or does not say."""
        return None if self._watch is None else self._watch.latest

    def start(self) -> None:
        """Find the server and see that it can be used.

        Raises:
            EngineError: it cannot.
        """
        self._call(self._wire.open(), what="opening connections", limit_s=_SLACK_S)
        self._look(self._settings.start_limit_s)

    def revive(self) -> None:
        """See `HttpHost.revive`."""
        self._look(0.0)  # whoever asks tries again later
        kept: list[Ended] = []
        with suppress(queue.Empty):
            while True:
                item = self._ended.get_nowait()
                kept += [item] if isinstance(item, Ended) else []  # the loss itself is told by now
        for item in kept:
            self._ended.put(item)

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """See `HttpHost.submit`."""
        self._thread.soon(partial(self._sender.submit, list(requests)))

    def abort(self, keys: Sequence[str]) -> None:
        """See `HttpHost.abort`."""
        self._thread.soon(partial(self._sender.abort, list(keys)))

    def take(self, *, wait_s: float) -> list[Ended]:
        """See `HttpHost.take`."""
        found: list[Ended] = []
        try:
            item = self._ended.get(timeout=wait_s) if wait_s > 0 else self._ended.get_nowait()
            while True:
                if isinstance(item, EngineError):
                    raise item
                found.append(item)
                item = self._ended.get_nowait()
        except queue.Empty:
            return found

    def swap(self, source: Source, *, label: str) -> None:
        """See `HttpHost.swap`."""
        server = self._server()
        if server.updates is None:
            raise EngineError("this server takes no weights (rollout.http.update is none)")
        self._serial += 1
        salt = f"{self._salt}.{self._serial}"
        swap = self._swapper.swap(server.updates, in_flight=server.in_flight, source=source, label=label, salt=salt)
        limit_s = 2 * self._settings.pause_lease_s + self._settings.drain_limit_s + _SLACK_S
        self._call(swap, what="the swap", limit_s=limit_s)

    def scores(self, prompts: Sequence[Sequence[int]]) -> list[Scored] | None:
        """See `HttpHost.scores`."""
        limit_s = self._settings.request_limit_s + _SLACK_S
        return self._call(self._scores(prompts), what="the probe", limit_s=limit_s)

    def close(self) -> None:
        """See `HttpHost.close`."""
        if not self._thread.running:
            return
        try:
            self._call(self._stop(), what="closing the connections", limit_s=_SLACK_S)
        finally:
            self._thread.stop()

    def _server(self) -> _Found:
        if self._found is None:
            raise EngineError("the server was not found yet", hint=REVIVE_HINT)
        return self._found

    def _call(self, work: Coroutine[object, object, T], *, what: str, limit_s: float) -> T:
        return self._thread.call(work, limit_s=limit_s, what=what)

    def _look(self, wait_s: float) -> None:
        limit_s = wait_s + 8 * self._settings.control_limit_s + self._settings.request_limit_s + _SLACK_S
        self._found = self._call(self._find(wait_s), what="getting to know the server", limit_s=limit_s)

    async def _find(self, wait_s: float) -> _Found:
        settings = self._settings
        await wait_until_healthy(self._wire, limit_s=wait_s)
        dialect, model, context_tokens = await identify(self._wire, settings=settings)
        updates = choose_updates(dialect.name, settings)
        in_flight = choose_in_flight(updates, settings)
        if updates is not None:
            await updates.prepare(self._wire)
        examiner = Examiner(self._wire, dialect=dialect, model=model, settings=settings)
        meaning = await examiner.examine(self._prompts, updates=updates)
        facts = ServerFacts(
            kind=dialect.name,
            model=model,
            context_tokens=context_tokens,
            meaning=meaning,
            update="none" if updates is None else updates.name,
            checks_weights=updates is not None and updates.checks_weights,
        )
        self._swapper.begin_anew()
        self.failure = None
        self._sender.begin(dialect, model=model)
        if self._watch is not None:
            self._watch.begin(dialect.name)
        return _Found(dialect=dialect, updates=updates, in_flight=in_flight, facts=facts)

    async def _scores(self, prompts: Sequence[Sequence[int]]) -> list[Scored] | None:
        server = self._server()
        found: list[Scored] = []
        for prompt in prompts:
            tokens = list(prompt)
            # A salt of its own: what other weights left in the prefix cache must not answer.
            ask = server.dialect.score(tokens, model=server.facts.model, salt=secrets.token_hex(8))
            data = await self._wire.generate(ask.path, ask.body, limit_s=self._settings.request_limit_s)
            scored = server.dialect.read_scores(data, prompt=tokens)
            if scored is None:
                return None
            found.append(scored)
        return found

    async def _stop(self) -> None:
        await self._sender.stop()
        if self._watch is not None:
            await self._watch.stop()
        await self._wire.close()

    def _lost(self, error: EngineError) -> None:
        self.failure = error
        self._ended.put(error)
