"""Early parts: chunks of a version that is still being staged are fetched before its manifest is there.

    learner puts a chunk -> its peer tells who wants what is fresh -> a host fetches it, together with the others

Role: a thread beside an engine, for hosts other than the learner's. It saves time, and nothing depends on it.
Data in: news of the seeds that manifests named last. Data out: chunks in the store, verified by digest, not pinned.
Invariants: nothing is loaded because of it: the version still arrives by its manifest, and `fetch` finds what is there.
A version of fewer than `_LEAST` chunks is left to `fetch`. Beside a seed nothing is done.
Failure: none; what could not be had early is fetched later.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerInfo
from pipeline.weights.download import ClientSettings, PeerClient
from pipeline.weights.fetcher import FetchOptions, FetchWork, fetch_chunks
from pipeline.weights.news import Member, News, NewsRequest
from schemas.errors import RlweaveError
from schemas.records import ChunkRef
from topics.clock import Deadline

_LEAST = 4  # chunks that make it worth beginning
_GATHER_S = 0.05
_RETRY_S = 1.0
_LIMIT_S = 30.0  # of one part
_SWARM = "fresh"


@dataclass(frozen=True, kw_only=True)
class PrefetchSetup:
    """What a prefetch works with. The callables are asked each time."""

    store: ChunkStore
    client: ClientSettings
    options: FetchOptions
    url: Callable[[], str | None]  # of this host's peer server
    domain: str
    peers: Callable[[], tuple[PeerInfo, ...]]


class Prefetch:
    """See the module. Made and used by one thread; `close` ends it."""

    def __init__(self, setup: PrefetchSetup) -> None:
        self._setup = setup
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        self._seeds: tuple[str, ...] = ()
        self.bytes_fetched = 0

    def follow(self, seeds: tuple[str, ...]) -> None:
        """These are the seeds now."""
        if seeds == self._seeds:
            return
        self.close()
        self._seeds, self._cancel = seeds, threading.Event()
        url = self._setup.url()
        if url is None or url in seeds:
            return
        self._thread = threading.Thread(target=self._run, args=(self._cancel,), name="prefetch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give up and wait for the thread."""
        self._cancel.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._seeds = ()

    def _run(self, cancel: threading.Event) -> None:
        fresh = _Fresh()
        listener = threading.Thread(
            target=lambda: asyncio.run(self._listen(fresh, cancel)), name="prefetch-news", daemon=True
        )
        listener.start()
        while not cancel.is_set():
            digests = fresh.take(_LEAST, wait_s=_GATHER_S)
            if digests:
                self._fetch(digests, cancel=cancel)
        listener.join()

    def _fetch(self, digests: list[str], *, cancel: threading.Event) -> None:
        setup, url = self._setup, self._setup.url()
        if url is None:
            return
        work = FetchWork(
            name="chunks that are staged",
            chunks=[ChunkRef(digest=digest, num_bytes=0) for digest in digests],
            seeds=self._seeds,
            store=setup.store,
            client=setup.client,
            deadline=Deadline.after(_LIMIT_S),
            me=Member(url=url, domain=setup.domain, swarm=_SWARM),
            peers=setup.peers(),
            options=setup.options,
        )
        try:
            result = fetch_chunks(work, cancel=cancel)
        except RlweaveError:  # `fetch` tells, if it fails as well
            return
        self.bytes_fetched += result.bytes_fetched

    async def _listen(self, fresh: _Fresh, cancel: threading.Event) -> None:
        async with PeerClient(self._setup.client) as client:
            tasks = [asyncio.create_task(_follow(client, seed, fresh=fresh)) for seed in self._seeds]
            while not cancel.is_set():
                await asyncio.sleep(_GATHER_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Fresh:
    """Digests that were told of and not fetched, between the two threads."""

    def __init__(self) -> None:
        self._digests: dict[str, None] = {}
        self._changed = threading.Condition()

    def add(self, news: News) -> None:
        with self._changed:
            self._digests.update(dict.fromkeys(news.chunks))
            self._changed.notify()

    def take(self, least: int, *, wait_s: float) -> list[str]:
        """All there are, when there are enough; fewer wait for the next ones."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._digests) >= least, timeout=wait_s)
            if len(self._digests) < least:
                return []
            digests = list(self._digests)
            self._digests.clear()
            return digests


async def _follow(client: PeerClient, seed: str, *, fresh: _Fresh) -> None:
    while True:
        await client.follow(seed, request=NewsRequest(want=(), fresh=True), hear=fresh.add)
        await asyncio.sleep(_RETRY_S)
