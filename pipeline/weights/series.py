"""The versions of one lineage, each as a delta to the one before, an anchor, or both.

Role: decides how a version travels, and keeps the last one as the base of the next.
Data in: snapshots of the state. Data out: chunks in the store and what a manifest says of them.
Invariants: the first version is a full anchor, so is every `anchor_every`-th, and one whose delta would be longer than
`max_delta_share` of the state. An anchor carries the delta as well where that is short enough, so an engine that
keeps up never fetches a whole state again. Two states are held, never three: the base, and the memory of the snapshot.
Failure: `WeightsError` (a full store); the base is then as before.
Threads: `snapshot` and `encode` may run on different ones, but never at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.weights.arrays import Array
from pipeline.weights.delta_state import EncodedDelta, StoreTarget, write_anchor, write_delta
from pipeline.weights.manifest import BaseRef, EncodedState
from pipeline.weights.state import tensor_entries
from pipeline.weights.wire_state import WireState
from schemas.records import ChunkRef, Version


@dataclass(frozen=True, kw_only=True)
class SeriesSettings:
    """How often anchors come."""

    anchor_every: int
    max_delta_share: float
    wire_dtype: str | None  # floating tensors are cast to it: "BF16", "F16", "F32"; None keeps each tensor's own


@dataclass(frozen=True, kw_only=True)
class EncodedVersion:
    """A version in chunks."""

    state: EncodedState  # without chunks: it is a delta only
    delta: BaseRef | None
    num_changed: int | None  # elements; None: there was no base, or too many changed to count
    num_elements: int
    num_new_bytes: int  # of chunks written for it


@dataclass(frozen=True, kw_only=True)
class _Base:
    state: WireState
    digest: str
    version: Version

    def reference(self, delta: EncodedDelta) -> BaseRef:
        return BaseRef(version=self.version, state_digest=self.digest, chunks=delta.chunks)


class VersionSeries:
    """See the module."""

    def __init__(self, settings: SeriesSettings, *, target: StoreTarget) -> None:
        self._settings = settings
        self._target = target
        self._base: _Base | None = None
        self._spare: WireState | None = None
        self._num_since_anchor = 0

    def snapshot(self, tensors: Mapping[str, Array], *, ties: Mapping[str, str]) -> WireState:
        """Copy the tensors as they are now, in the dtypes of the wire. They may change when this returns.

        Raises:
            WeightsError: a dtype cannot travel, or a tie names what is not equal.
        """
        entries = tensor_entries(tensors, ties=ties, wire_dtype=self._settings.wire_dtype)
        state, self._spare = self._spare, None
        if state is None or state.entries != entries:
            state = WireState.empty(entries)
        state.fill(tensors)
        return state

    def encode(self, state: WireState, *, version: Version) -> EncodedVersion:
        """Write what is new into the store; `state` is the base from now on, and its memory is this object's.

        Raises:
            WeightsError: the store is full.
        """
        base = self._base if self._base is not None and self._base.state.entries == state.entries else None
        delta = None if base is None else self._delta(base, state)
        is_anchor = delta is None or self._num_since_anchor + 1 >= self._settings.anchor_every
        chunks: tuple[ChunkRef, ...] = ()
        if is_anchor:
            chunks, digest = write_anchor(state, self._target)
        elif base is not None and delta is not None and delta.num_changed == 0:
            digest = base.digest  # an empty delta: another version of the same content
        else:
            digest = state.digest()
        self._num_since_anchor = 0 if is_anchor else self._num_since_anchor + 1
        self._spare = None if base is None else base.state
        self._base = _Base(state=state, digest=digest, version=version)
        return EncodedVersion(
            state=EncodedState(tensors=state.entries, chunks=chunks, state_digest=digest, num_bytes=state.num_bytes),
            delta=None if base is None or delta is None else base.reference(delta),
            num_changed=None if delta is None else delta.num_changed,
            num_elements=sum(elements for elements, _ in state.sizes),
            num_new_bytes=(0 if delta is None else delta.num_bytes) + (state.num_bytes if is_anchor else 0),
        )

    def begin_anew(self) -> None:
        """The version encoded last will not be published, so it is no base: the next one is a full anchor."""
        self._base = None

    def _delta(self, base: _Base, state: WireState) -> EncodedDelta | None:
        if self._settings.anchor_every == 1:
            return None
        limit_bytes = int(self._settings.max_delta_share * state.num_bytes)
        return write_delta(base.state, state, base_digest=base.digest, target=self._target, limit_bytes=limit_bytes)
