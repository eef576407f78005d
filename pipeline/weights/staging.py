"""Fetching a version in the background, one at a time.

Role: stage before pause (promise 10): chunks are fetched, verified and decoded on a thread while the engine generates.
Data in: manifests; data out: decoded states, ready to load.
Invariants: at most one fetch runs; the chunks of the version being fetched and of the one staged last are pinned, the
rest may be swept. The engine is not touched here. The state staged last stays in memory as the base of deltas, and the
next fetch changes it in place: load what `poll` gave before the next `begin`.
Failure: a delta that cannot be applied, whatever the reason, is followed by a fetch of the nearest anchor and what
comes after it; when that fails too it becomes `Staged.error`, and the caller serves on with what it has.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.engines.backends import Backend
from pipeline.engines.base import StateTensor
from pipeline.settings import WeightsSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerDirectory, PeerInfo
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import FetchOptions, FetchResult, fetch
from pipeline.weights.held import HeldState
from pipeline.weights.listing import parts_of
from pipeline.weights.model_files import seed_store
from pipeline.weights.news import Member
from pipeline.weights.peer_file import read_peer_file
from pipeline.weights.prefetch import Prefetch, PrefetchSetup
from pipeline.weights.route import Route, find_route
from schemas.errors import DeadlineExceeded, FetchCancelled, RlweaveError, WeightsError
from schemas.records import Manifest, Version
from topics.clock import Deadline


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What became of a fetch: a state, or an error."""

    manifest: Manifest
    state: Mapping[str, StateTensor] | None = None
    result: FetchResult | None = None
    num_deltas: int = 0  # applied on the way
    refused: str | None = None  # why the deltas were given up for an anchor
    error: RlweaveError | None = None


class _Trip:
    """One fetch: where to, over what, until when."""

    def __init__(
        self,
        *,
        target: Manifest,
        published: Mapping[Version, Manifest],
        cancel: threading.Event,
        limit_s: float,
        client: ClientSettings,
    ) -> None:
        self.target = target
        self.cancel = cancel
        self.limit_s = limit_s
        self.client = client
        self._published = published

    def route(self, held_digest: str | None) -> Route:
        """The shortest way from the state of this digest; None: from nothing."""
        return find_route(self.target, published=self._published, held_digest=held_digest)


class Staging:
    """The background fetcher of one engine.

    Args:
        store: of this host, shared with the other engines on it and served by its peer process.
        owner: begins the names of this engine's leases in it.
        backend: how chunks become tensors that the engine takes.
        directory: further peers.
        client: how peers are asked.
        model_dir: the engine's own files, which may hold the first version.
        alone: it is in no hurry: no member of the swarm, and nothing is fetched ahead.
    """

    def __init__(
        self,
        store: ChunkStore,
        *,
        owner: str,
        backend: Backend,
        directory: PeerDirectory,
        client: ClientSettings,
        settings: WeightsSettings,
        model_dir: Path | None = None,
        alone: bool = False,
    ) -> None:
        self._store = store
        self._alone = alone
        self._model_dir = model_dir
        self._owner = owner
        self._held = HeldState[StateTensor](backend.decode, merge=backend.merge)
        self._by_anchor = False  # the way over deltas ran out of time: try the other one; both are the thread's
        self._directory = directory
        self._client = client
        self._settings = settings
        self._living, self._lives = ExitStack(), False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging")
        self._running: tuple[Version, Future[Staged], threading.Event] | None = None
        self._prefetch = Prefetch(
            PrefetchSetup(
                store=store,
                client=client,
                options=FetchOptions(parallel=settings.parallel_fetches, max_peers=settings.max_peers),
                url=self._url,
                domain=settings.domain,
                peers=lambda: directory.peers().peers,
            )
        )

    @property
    def version(self) -> Version | None:
        """What is being fetched."""
        return None if self._running is None else self._running[0]

    def begin(
        self, manifest: Manifest, *, published: Mapping[Version, Manifest], rate_bytes_s: float | None = None
    ) -> None:
        """Fetch this version, after what was being fetched is given up; what that has verified stays in the store.

        Args:
            published: the manifests there are, for the way to it; copied.
            rate_bytes_s: most bytes to take in per second; None: as fast as it goes.
        """
        self.cancel()
        cancel = threading.Event()
        trip = _Trip(
            target=manifest,
            published=dict(published),
            cancel=cancel,
            limit_s=self._settings.fetch_deadline_s,
            client=replace(self._client, rate_bytes_s=rate_bytes_s),
        )
        future = self._pool.submit(self._stage, trip)
        self._running = (manifest.version, future, cancel)
        if self._settings.prefetch and not self._alone:
            self._prefetch.follow(manifest.seeds)

    def cancel(self) -> None:
        """Give up what is being fetched."""
        if self._running is not None:
            self._running[2].set()
            self._running = None

    def poll(self) -> Staged | None:
        """The outcome of the fetch, once."""
        if self._running is None or not self._running[1].done():
            return None
        future = self._running[1]
        self._running = None
        return future.result()

    def close(self) -> None:
        """Give up and wait for the thread."""
        self.cancel()
        self._prefetch.close()
        self._pool.shutdown(wait=True)
        self._living.close()

    def _stage(self, trip: _Trip) -> Staged:
        try:
            self._live()
            staged = self._travel(trip)
        except RlweaveError as error:
            return Staged(manifest=trip.target, error=error)
        self._by_anchor = False
        self._let_go(keep=trip.target.version)
        return staged

    def _travel(self, trip: _Trip) -> Staged:
        """Follow the shortest way; when deltas turn out not to fit, the one over an anchor."""
        route = trip.route(None if self._by_anchor else self._held.digest)
        try:
            return self._follow(route, trip)
        except FetchCancelled:
            raise
        except DeadlineExceeded:
            self._by_anchor = route.anchor is None  # one of the deltas may be nowhere any more
            raise
        except WeightsError as error:
            if route.anchor is not None:
                raise
            self._held.forget()
            return replace(self._follow(trip.route(None), trip), refused=error.message)

    def _follow(self, route: Route, trip: _Trip) -> Staged:
        """Fetch all of a route, then put the version together."""
        deadline = Deadline.after(trip.limit_s)
        results = [self._fetch(part, trip=trip, deadline=deadline) for part in parts_of(route, store=self._store)]
        state = self._held.advance(trip.target, route, store=self._store)
        return Staged(manifest=trip.target, state=state, result=_total(results), num_deltas=len(route.deltas))

    def _fetch(self, part: Manifest, *, trip: _Trip, deadline: Deadline) -> FetchResult:
        """Bring a part into the store; the first one perhaps from the engine's own files."""
        if self._model_dir is not None:
            seed_store(self._model_dir, part, store=self._store, owner=self._lease(trip.target.version))
            self._model_dir = None  # later versions are trained: no file has them
        return fetch(
            part,
            store=self._store,
            client=trip.client,
            deadline=deadline,
            me=self._me(trip.target.version),
            extra_peers=self._directory.peers().peers,
            options=self._options(trip.target.version),
            cancel=trip.cancel,
        )

    def _live(self) -> None:
        """Our leases end with this process, also when it is killed; another engine's sweep sees to that."""
        if not self._lives:
            self._living.enter_context(self._store.living(self._owner))
            self._lives = True

    def _options(self, version: Version) -> FetchOptions:
        url = self._url()
        return FetchOptions(
            parallel=self._settings.parallel_fetches,
            max_peers=self._settings.max_peers,
            here=PeerInfo(url="" if url is None else url, domain=self._settings.domain),
            owner=self._lease(version),
        )

    def _me(self, version: Version) -> Member | None:
        """This host as others see it; None while no peer process serves its store."""
        url = None if self._alone else self._url()
        return None if url is None else Member(url=url, domain=self._settings.domain, swarm=str(version))

    def _url(self) -> str | None:
        """Of this host's peer server."""
        peer = read_peer_file(self._store.root.parent)
        return None if peer is None else peer["url"].rstrip("/")

    def _let_go(self, *, keep: Version) -> None:
        """Only the version just staged stays pinned; older chunks go when the store is over its bound."""
        for owner in self._store.pins():
            if owner.startswith(f"{self._owner}.") and owner != self._lease(keep):
                self._store.unpin(owner)
        self._store.sweep()

    def _lease(self, version: Version) -> str:
        return f"{self._owner}.{version}"


def _total(results: Sequence[FetchResult]) -> FetchResult:
    return FetchResult(
        bytes_fetched=sum(result.bytes_fetched for result in results),
        bytes_local=sum(result.bytes_local for result in results),
        seconds=sum(result.seconds for result in results),
        bad_peers=tuple(dict.fromkeys(peer for result in results for peer in result.bad_peers)),
        notices=tuple(dict.fromkeys(notice for result in results for notice in result.notices)),
    )
