"""Getting a version for the evaluator's engine, in the background and out of everybody's way.

Role: fetch, verify and decode one version at a time on a thread; the evaluator goes on with what it has.
Data in: manifests; chunks of peers, asked as traffic of class `evaluation`, which peers hold back for weights that
rollouts wait for. Data out: tensors for the engine.
Invariants: the store is that of the host's engines, so what rollouts here have fetched is not fetched again. Only the
version staged last is pinned. The tensors given out change with the next `begin`: load them before.
Failure: `Fetched.error`; nothing is retried here.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.engines.backends import Backend
from pipeline.engines.base import StateTensor
from pipeline.settings import WeightsSettings
from pipeline.traffic.classes import TrafficClass
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerDirectory
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import FetchOptions, fetch
from pipeline.weights.held import HeldState
from pipeline.weights.listing import parts_of
from pipeline.weights.model_files import seed_store
from pipeline.weights.route import Route, find_route
from schemas.errors import RlweaveError, WeightsError
from schemas.records import Manifest, Version
from topics.clock import Deadline

OWNER = "evaluator"  # begins the names of its leases in the store


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What became of a fetch: a state, or an error."""

    version: Version
    state: Mapping[str, StateTensor] | None = None
    seconds: float = 0.0
    num_bytes: int = 0
    error: RlweaveError | None = None


class EvaluatorWeights:
    """See the module.

    Args:
        store: of this host's engines.
        backend: how chunks become tensors that the engine takes.
        directory: further peers.
        client: how peers are asked.
        model_dir: the engine's own files, which may hold the first version.
    """

    def __init__(
        self,
        store: ChunkStore,
        *,
        backend: Backend,
        directory: PeerDirectory,
        client: ClientSettings,
        settings: WeightsSettings,
        model_dir: Path,
    ) -> None:
        self._store = store
        self._held = HeldState[StateTensor](backend.decode, merge=backend.merge)  # touched by the thread only
        self._directory = directory
        self._client = replace(client, traffic_class=str(TrafficClass.EVALUATION))
        self._settings = settings
        self._model_dir = model_dir
        self._living, self._lives = ExitStack(), False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fetch")
        self._running: Future[Fetched] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way or its outcome was not taken."""
        return self._running is not None

    def begin(self, manifest: Manifest, *, published: Mapping[Version, Manifest]) -> None:
        """Fetch this version; one at a time.

        Args:
            published: the manifests there are, for the way to it; copied.
        """
        self._running = self._pool.submit(self._stage, manifest, dict(published))

    def poll(self) -> Fetched | None:
        """The outcome of the fetch, once."""
        if self._running is None or not self._running.done():
            return None
        future, self._running = self._running, None
        return future.result()

    def close(self) -> None:
        """Wait for the thread, within the limit of a fetch."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._living.close()

    def _stage(self, target: Manifest, published: Mapping[Version, Manifest]) -> Fetched:
        try:
            if not self._lives:
                self._living.enter_context(self._store.living(OWNER))
                self._lives = True
            return self._travel(target, published=published)
        except RlweaveError as error:
            return Fetched(version=target.version, error=error)

    def _travel(self, target: Manifest, *, published: Mapping[Version, Manifest]) -> Fetched:
        """Over deltas where that is shorter; over an anchor when they turn out not to fit."""
        route = find_route(target, published=published, held_digest=self._held.digest)
        try:
            return self._follow(route, target)
        except WeightsError:
            if route.anchor is not None:
                raise
            self._held.forget()
            return self._follow(find_route(target, published=published, held_digest=None), target)

    def _follow(self, route: Route, target: Manifest) -> Fetched:
        deadline = Deadline.after(self._settings.fetch_deadline_s)
        lease = f"{OWNER}.{target.version}"
        seconds, num_bytes = 0.0, 0
        for part in parts_of(route, store=self._store):
            seed_store(self._model_dir, part, store=self._store, owner=lease)
            done = fetch(
                part,
                store=self._store,
                client=self._client,
                deadline=deadline,
                extra_peers=self._directory.peers().peers,
                options=FetchOptions(
                    parallel=self._settings.parallel_fetches, max_peers=self._settings.max_peers, owner=lease
                ),
            )
            seconds, num_bytes = seconds + done.seconds, num_bytes + done.bytes_fetched
        state = self._held.advance(target, route, store=self._store)
        for owner in self._store.pins():
            if owner.startswith(f"{OWNER}.") and owner != lease:
                self._store.unpin(owner)
        self._store.sweep()
        return Fetched(version=target.version, state=state, seconds=seconds, num_bytes=num_bytes)
