"""Fetching a version in the background, one at a time.

Role: stage before pause (promise 10): chunks are fetched, verified and decoded on a thread while the engine generates.
Data in: manifests; data out: decoded states, ready to load.
Invariants: at most one fetch runs; the chunks of the version being fetched and of the one staged last are pinned, the
rest may be swept. The engine is not touched here.
Failure: a fetch that fails becomes `Staged.error`; the caller serves on with what it has.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.engines.backends import Decoder
from pipeline.engines.base import StateTensor
from pipeline.settings import WeightsSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerDirectory
from pipeline.weights.fetcher import FetchOptions, FetchResult, fetch
from schemas.errors import RlweaveError
from schemas.records import Manifest, Version
from topics.clock import Deadline

_OWNER = "rollout"


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What became of a fetch: a state, or an error."""

    manifest: Manifest
    state: Mapping[str, StateTensor] | None = None
    result: FetchResult | None = None
    error: RlweaveError | None = None


class Staging:
    """The background fetcher of one engine.

    Args:
        store: this producer's own.
        decode: from chunks to the tensors that the engine takes.
        directory: further peers.
        token: of the run's peers.
    """

    def __init__(
        self,
        store: ChunkStore,
        *,
        decode: Decoder,
        directory: PeerDirectory,
        token: str,
        settings: WeightsSettings,
    ) -> None:
        self._store = store
        self._decode = decode
        self._directory = directory
        self._token = token
        self._settings = settings
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging")
        self._running: tuple[Version, Future[Staged], threading.Event] | None = None

    @property
    def version(self) -> Version | None:
        """What is being fetched."""
        return None if self._running is None else self._running[0]

    def begin(self, manifest: Manifest) -> None:
        """Fetch this version, after what was being fetched is given up; what that has verified stays in the store."""
        self.cancel()
        cancel = threading.Event()
        self._running = (manifest.version, self._pool.submit(self._stage, manifest, cancel), cancel)

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
        self._pool.shutdown(wait=True)

    def _stage(self, manifest: Manifest, cancel: threading.Event) -> Staged:
        try:
            result = fetch(
                manifest,
                store=self._store,
                token=self._token,
                deadline=Deadline.after(self._settings.fetch_deadline_s),
                extra_peers=self._directory.peers().peers,
                parallel=self._settings.parallel_fetches,
                options=FetchOptions(owner=_owner(manifest.version)),
                cancel=cancel,
            )
            state = self._decode(manifest, self._store)
        except RlweaveError as error:
            return Staged(manifest=manifest, error=error)
        self._let_go(keep=manifest.version)
        return Staged(manifest=manifest, state=state, result=result)

    def _let_go(self, *, keep: Version) -> None:
        """Only the version just staged stays pinned; older chunks go when the store is over its bound."""
        for owner in self._store.pins():
            if owner.startswith(f"{_OWNER}.") and owner != _owner(keep):
                self._store.unpin(owner)
        self._store.sweep()


def _owner(version: Version) -> str:
    return f"{_OWNER}.{version}"
