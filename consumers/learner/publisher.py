"""Turns the learner's state into a staged version and its manifest.

Role: after a step, put the weights into the chunk store and say what they are. Sending is the peers' work.
Data in: the model's named state. Data out: a `Manifest` for the step's transaction, and versions to tombstone.
Invariants: every chunk is in the store before the manifest is written; chunks of a version that is still listed are
never swept; a version number is used for one content only.
Failure: `WeightsError` (a full store); the step's transaction is then not written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import nn

from pipeline.engines.model_dir import named_state
from pipeline.settings import WeightsSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.manifest import build_manifest
from pipeline.weights.peer import read_peer_file
from pipeline.weights.state import encode_state
from schemas.errors import WeightsError
from schemas.records import Manifest, Version
from topics.clock import Clock

WIRE_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A version ready for its transaction."""

    manifest: Manifest
    retired: tuple[Version, ...]  # listed so far, no longer kept: written as tombstones in the same transaction


class Publisher:
    """Stages versions into the learner host's chunk store."""

    def __init__(self, settings: WeightsSettings, *, store: ChunkStore, run: str, clock: Clock) -> None:
        self._settings = settings
        self._store = store
        self._run = run
        self._clock = clock
        self._listed: deque[Manifest] = deque()
        self._url = ""  # of the peer over our store, when it was last seen

    def adopt(self, listed: list[Manifest]) -> None:
        """Continue from the manifests an earlier process listed and did not tombstone, in version order."""
        self._listed.extend(sorted(listed, key=lambda manifest: manifest.version))

    def stage(self, model: nn.Module, *, version: Version) -> Staged:
        """Chunk and hash the weights, and decide which versions are no longer kept.

        Raises:
            WeightsError: the store is full, or no peer process serves it.
        """
        tensors, ties = named_state(model)
        wire = self._settings.wire_dtype
        state = encode_state(
            tensors,
            ties=ties,
            wire_dtype=None if wire is None else WIRE_NAMES[wire],
            chunk_bytes=self._settings.chunk_bytes,
            store=self._store,
            owner="learner",
        )
        manifest = build_manifest(
            state, run=self._run, version=version, seeds=[self._seed()], created_unix_ms=self._clock.unix_ms()
        )
        self._listed.append(manifest)
        retired = []
        while len(self._listed) > self._settings.keep_versions:
            retired.append(self._listed.popleft().version)
        return Staged(manifest=manifest, retired=tuple(retired))

    def release(self) -> None:
        """After the transaction: let go of chunks that no listed version needs."""
        needed = {chunk.digest for manifest in self._listed for chunk in manifest.chunks}
        pinned = self._store.pins().get("learner", frozenset())
        self._store.unpin("learner", set(pinned - needed))
        self._store.sweep(keep=needed)

    @property
    def has_seed(self) -> bool:
        """Whether a peer process serves, or served, our store; both start at the same time."""
        peer = read_peer_file(self._store.root)
        if peer is not None:
            self._url = peer["url"]
        return self._url != ""

    def _seed(self) -> str:
        """The peer's address; while it is being restarted, the last one known."""
        if not self.has_seed:
            raise WeightsError(
                f"no peer process serves {self._store.root}",
                hint="start one on this host with `rlweave run peer --config FILE`",
            )
        return self._url
