"""States into deltas and anchors in the chunk store, and deltas from there onto a state.

Role: between `delta` (bytes), `wire_state` (memory) and the store (chunks); used by the publisher and by engines.
Data in and out: wire states; chunks and digests as a manifest names them.
Invariants: a delta is applied only onto the state whose digest it names, and only when all of it is well-formed.
Failure: `WeightsError`. When it comes after the first write (`verify_state`, a span's digest) the state is no version
at all any more: the caller must throw it away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta import HEADER, EncodedSpan, check_patch, encode_tensor, header, parse, write_patch
from pipeline.weights.files import BytesLike
from pipeline.weights.manifest import check_manifest
from pipeline.weights.stream import ChunkWriter, join_chunks
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Manifest


@dataclass(frozen=True, kw_only=True)
class StoreTarget:
    """Where chunks go."""

    store: ChunkStore
    chunk_bytes: int
    owner: str | None = None  # lease that pins each chunk before it becomes visible


@dataclass(frozen=True, kw_only=True)
class EncodedDelta:
    """A delta in chunks."""

    chunks: tuple[ChunkRef, ...]
    num_bytes: int
    num_changed: int  # elements


def write_anchor(state: WireState, target: StoreTarget) -> tuple[tuple[ChunkRef, ...], str]:
    """The chunks of a full anchor in stream order, and the digest of the state.

    Raises:
        WeightsError: the store is full.
    """
    writer = ChunkWriter(target.store, chunk_bytes=target.chunk_bytes, owner=target.owner)
    for buffer in state.buffers:
        if buffer.data.size > 0:
            writer.write(buffer.data.data)
    return writer.finish()


def write_delta(
    base: WireState, new: WireState, *, base_digest: str, target: StoreTarget, limit_bytes: int
) -> EncodedDelta | None:
    """The delta from `base` to `new`; None as soon as it is longer than `limit_bytes`.

    Raises:
        WeightsError: the states differ in their tensors, or the store is full.
    """
    writer = ChunkWriter(target.store, chunk_bytes=target.chunk_bytes, owner=target.owner)
    num_bytes, num_changed = 0, 0
    for span in delta_spans(base, new, base_digest=base_digest):
        num_bytes += span.num_bytes
        num_changed += span.num_changed
        if num_bytes > limit_bytes + HEADER.size:
            return None
        for piece in span.pieces:
            writer.write(piece)
    chunks, _ = writer.finish()
    return EncodedDelta(chunks=chunks, num_bytes=num_bytes, num_changed=num_changed)


def delta_spans(base: WireState, new: WireState, *, base_digest: str, digests: bool = True) -> Iterator[EncodedSpan]:
    """The delta's bytes, header first, computed as they are taken.

    Raises:
        WeightsError: the states differ in their tensors.
    """
    if base.entries != new.entries:
        raise WeightsError("a delta joins two states of the same tensors; these differ in names, shapes or dtypes")
    yield EncodedSpan(num_changed=0, pieces=(header(base_digest),))
    for number, (old, now) in enumerate(zip(base.buffers, new.buffers, strict=True)):
        yield from encode_tensor(number, old=old, new=now, digests=digests)


def apply_delta(manifest: Manifest, *, state: WireState, state_digest: str, store: ChunkStore) -> None:
    """Turn `state` into the version that a delta manifest names, in place; chunks from the store.

    Raises:
        WeightsError: another base, other tensors, absent, altered or malformed chunks (nothing was written), or spans
            with another digest afterwards (`state` is spoilt).
    """
    check_manifest(manifest)
    if manifest.encoding != "delta" or manifest.base_digest != state_digest:
        raise WeightsError(
            f"version {manifest.version} is a delta to {manifest.base} ({manifest.base_digest}), "
            f"the state at hand is {state_digest}; it was not applied"
        )
    if manifest.tensors != state.entries:
        raise WeightsError(f"version {manifest.version} has other tensors than the state at hand; it was not applied")
    apply_bytes(join_chunks(manifest, store=store), state=state, state_digest=state_digest)


def apply_bytes(data: BytesLike, *, state: WireState, state_digest: str, digests: bool = True) -> None:
    """As `apply_delta`, from the delta's bytes.

    Raises:
        WeightsError: see `apply_delta`.
    """
    patches = parse(data, base_digest=state_digest, sizes=state.sizes)
    for patch in patches:
        write_patch(patch, state.buffers[patch.tensor])
    if not digests:
        return
    for patch in patches:
        if not check_patch(patch, state.buffers[patch.tensor]):
            name = state.entries[patch.tensor].name
            raise WeightsError(f"tensor {name!r} has other bytes than the delta names after it was applied")


def verify_state(manifest: Manifest, *, state: WireState) -> None:
    """Check that `state` is what the manifest names.

    Raises:
        WeightsError: its digest is another one.
    """
    digest = state.digest()
    if digest != manifest.state_digest:
        raise WeightsError(
            f"version {manifest.version} should be state {manifest.state_digest}, it came out as {digest}; "
            "it is not loaded"
        )
