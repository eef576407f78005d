"""Turns the learner's state into a staged version and its manifest.

Role: after a step, put the weights into the chunk store and say what they are. Sending is the peers' work.
Steps: (1) `begin` copies the state, cast to the dtype of the wire: the only part that training waits for; (2) a thread
compares, hashes and chunks it, and its manifest too when that is large; (3) `poll` gives what goes on the topic in the
step's transaction; (4) `release` after that.
Data in: the model's named state. Data out: a `Manifest`, and versions to tombstone.
Invariants: every chunk is in the store before the manifest is written; chunks of a version that is still listed are
never swept, and a version stays listed as long as a kept one rests on it (its anchor, and the deltas in between); a
version number is used for one content only; the first version of a process is a full anchor (promise 3). One version
is staged at a time.
Failure: `WeightsError` (a full store) from `poll`; the step's transaction is then not written.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from torch import nn

from consumers.learner.lora import trained_state
from pipeline.settings import WeightsSettings
from pipeline.weights.adapters import Adapting
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.listing import open_listing, set_apart
from pipeline.weights.manifest import all_chunks, build_manifest, check_peer_url
from pipeline.weights.peer_file import read_peer_file
from pipeline.weights.series import EncodedVersion, SeriesSettings, VersionSeries
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import Manifest, Version
from topics.clock import Clock

WIRE_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_OWNER = "learner"


@dataclass(frozen=True, kw_only=True)
class StagingFigures:
    """What staging a version took."""

    snapshot_s: float  # training stood still
    encode_s: float  # beside it
    num_new_bytes: int  # of chunks written: what a peer that keeps up does not have yet, anchors included
    delta_bytes: int  # 0: no delta
    num_bytes: int  # of the whole state
    changed_share: float  # of elements, since the version before; NaN: not known


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A version ready for its transaction."""

    manifest: Manifest
    retired: tuple[Version, ...]  # listed so far, no longer kept: written as tombstones in the same transaction
    figures: StagingFigures


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """What the thread made."""

    manifest: Manifest  # as it goes on the topic, without seeds
    whole: Manifest  # the same with its tensors and chunks
    encoded: EncodedVersion
    encode_s: float


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A version that is on the topic: what retention must know of it, and no more."""

    version: Version
    is_anchor: bool
    digests: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest, *, whole: Manifest) -> _Listed:
        """`whole` is the manifest with what its listing has."""
        digests = frozenset(chunk.digest for each in (manifest, whole) for chunk in all_chunks(each))
        return cls(version=manifest.version, is_anchor=manifest.encoding == "full", digests=digests)


class Publisher:
    """Stages versions into the learner host's chunk store.

    Args:
        adapting: when only adapters of the models are trained: they travel alone, in float32.
    """

    def __init__(
        self,
        settings: WeightsSettings,
        *,
        store: ChunkStore,
        run: str,
        clock: Clock,
        adapting: Adapting | None = None,
    ) -> None:
        self._adapting = adapting
        self._settings = settings
        self._store = store
        self._run = run
        self._clock = clock
        self._listed: deque[_Listed] = deque()
        self._url = ""  # of the peer over our store, when it was last seen
        self._target = StoreTarget(store=store, chunk_bytes=settings.chunk_bytes, owner=_OWNER)
        wire = settings.wire_dtype if adapting is None else None
        self._series = VersionSeries(
            SeriesSettings(
                anchor_every=settings.anchor_every,
                max_delta_share=settings.max_delta_share,
                wire_dtype=None if wire is None else WIRE_NAMES[wire],
            ),
            target=self._target,
        )
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publisher")
        self._job: tuple[Version, float, Future[_Encoded]] | None = None

    def adopt(self, listed: list[Manifest]) -> None:
        """Continue from the manifests an earlier process listed and did not tombstone, in version order."""
        self._listed.extend(map(self._adopted, sorted(listed, key=lambda manifest: manifest.version)))

    def begin(self, model: nn.Module, *, version: Version) -> None:
        """(1), and start (2). The weights may change when this returns.

        Raises:
            WeightsError: a dtype cannot travel.
            RuntimeError: the version before was not taken yet.
        """
        if self._job is not None:
            raise RuntimeError(f"version {self._job[0]} is still being staged")
        began_s, taken_unix_ms = self._clock.monotonic(), self._clock.unix_ms()
        tensors, ties = trained_state(model)
        state = self._series.snapshot(tensors, ties=ties)
        snapshot_s = self._clock.monotonic() - began_s
        self._job = (version, snapshot_s, self._pool.submit(self._encode, state, version, taken_unix_ms=taken_unix_ms))

    def poll(self, *, wait_s: float | None) -> Staged | None:
        """(3): the version that was begun, once, when it is ready.

        Args:
            wait_s: longest wait for it; None: until it is ready.

        Raises:
            WeightsError: the store is full, or no peer process serves it.
        """
        if self._job is None:
            return None
        _, snapshot_s, future = self._job
        if not wait({future}, timeout=wait_s).done:
            return None
        self._job = None
        made = future.result()
        manifest = replace(made.manifest, seeds=(check_peer_url(self._seed()),))
        self._listed.append(_Listed.of(manifest, whole=made.whole))
        figures = _figures(made, snapshot_s=snapshot_s)
        return Staged(manifest=manifest, retired=tuple(self._retire()), figures=figures)

    def stage(self, model: nn.Module, *, version: Version) -> Staged:
        """(1) to (3) at once.

        Raises:
            WeightsError: the store is full, or no peer process serves it.
        """
        self.begin(model, version=version)
        staged = self.poll(wait_s=None)
        if staged is None:
            raise RuntimeError("a version that was waited for is not there")
        return staged

    def release(self) -> None:
        """(4) After the transaction: let go of chunks that no listed version needs."""
        needed = frozenset[str]().union(*(listed.digests for listed in self._listed))
        pinned = self._store.pins().get(_OWNER, frozenset())
        self._store.unpin(_OWNER, set(pinned - needed))
        self._store.sweep(keep=needed)

    def close(self) -> None:
        """Wait for the thread; what it was staging is given up."""
        self._pool.shutdown(wait=True)
        self._job = None

    @property
    def has_seed(self) -> bool:
        """Whether a peer process of this host serves, or served, the run's stores; both start at the same time."""
        peer = read_peer_file(self._store.root.parent)
        if peer is not None:
            self._url = peer["url"]
        return self._url != ""

    def _encode(self, state: WireState, version: Version, *, taken_unix_ms: int) -> _Encoded:
        began_s = self._clock.monotonic()
        encoded = self._series.encode(state, version=version)
        whole = build_manifest(
            encoded.state,
            run=self._run,
            version=version,
            seeds=(),
            created_unix_ms=taken_unix_ms,
            delta=encoded.delta,
            adapter=None if self._adapting is None else self._adapting.describe(state),
        )
        try:
            manifest = set_apart(whole, target=self._target)
        except WeightsError:
            self._series.begin_anew()
            raise
        encode_s = self._clock.monotonic() - began_s
        return _Encoded(manifest=manifest, whole=whole, encoded=encoded, encode_s=encode_s)

    def _adopted(self, manifest: Manifest) -> _Listed:
        try:
            whole = open_listing(manifest, store=self._store)
        except WeightsError:  # nobody gets this version from here any more, so there is nothing else to keep for it
            whole = manifest
        return _Listed.of(manifest, whole=whole)

    def _retire(self) -> list[Version]:
        """Versions that no kept one rests on: those before the last anchor at or before the oldest kept version."""
        first = max(0, len(self._listed) - self._settings.keep_versions)
        anchors = [index for index in range(first + 1) if self._listed[index].is_anchor]
        return [self._listed.popleft().version for _ in range(anchors[-1] if anchors else 0)]

    def _seed(self) -> str:
        """The peer's address; while it is being restarted, the last one known."""
        if not self.has_seed:
            raise WeightsError(
                f"no peer process serves {self._store.root}",
                hint="start one on this host with `rlweave run peer --config FILE`",
            )
        return self._url


def _figures(made: _Encoded, *, snapshot_s: float) -> StagingFigures:
    encoded = made.encoded
    delta_bytes = 0 if encoded.delta is None else sum(chunk.num_bytes for chunk in encoded.delta.chunks)
    listing_bytes = sum(chunk.num_bytes for chunk in made.manifest.listing)
    changed = float("nan") if encoded.num_changed is None else encoded.num_changed / max(1, encoded.num_elements)
    return StagingFigures(
        snapshot_s=snapshot_s,
        encode_s=made.encode_s,
        num_new_bytes=encoded.num_new_bytes + listing_bytes,
        delta_bytes=delta_bytes,
        num_bytes=encoded.state.num_bytes,
        changed_share=changed,
    )
