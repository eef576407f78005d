"""What a version's weights are: building a manifest and refusing one that cannot be right.

Role: the gate in front of fetch and decode. Nothing about a manifest is believed before `check_manifest`.
Data in and out: `schemas.records.Manifest`. No torch.
Invariants: after `check_manifest` the tensors fill the canonical stream exactly, and so do the chunks of an anchor; a
delta names its base by digest and is not longer than the state; one that is listed apart (`pipeline.weights.listing`)
has a listing of bounded size, and nothing else that the listing has.
Failure: `WeightsError` naming the version and what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pipeline.weights.chunks import check_digest
from pipeline.weights.dtypes import tensor_num_bytes
from schemas.errors import WeightsError
from schemas.records import AdapterOf, ChunkRef, Manifest, TensorEntry, Version

DELTA_SPARE_BYTES = 4096  # headers of a delta to a state that is as small as they are
MAX_CHUNK_BYTES = 256 * 2**20  # a receiver holds `parallel` of them in memory
MAX_LISTING_BYTES = 16 * 2**20  # decoded whole, to some 100 MiB: 240,000 chunks, a terabyte at 4 MiB
LISTING = "listing"  # encoding of a manifest of nothing but a listing: made here, never published


@dataclass(frozen=True, kw_only=True)
class EncodedState:
    """A model state in chunks: what a manifest says of it."""

    tensors: tuple[TensorEntry, ...]
    chunks: tuple[ChunkRef, ...]
    state_digest: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class BaseRef:
    """What a delta is applied to, and the delta's chunks."""

    version: Version
    state_digest: str
    chunks: tuple[ChunkRef, ...]


def build_manifest(
    state: EncodedState,
    *,
    run: str,
    version: Version,
    seeds: Sequence[str],
    created_unix_ms: int,
    delta: BaseRef | None = None,
    adapter: AdapterOf | None = None,
) -> Manifest:
    """The manifest of a full anchor, of a delta (`state` has no chunks), or of an anchor that is a delta as well.

    Args:
        seeds: base URLs of peers that have every chunk.
        adapter: what the state is adapters to; None: it is a whole model.

    Raises:
        WeightsError: the result would not pass `check_manifest`.
    """
    is_delta = delta is not None and not state.chunks
    manifest = Manifest(
        run=run,
        version=version,
        base=None if delta is None else delta.version,
        base_digest=None if delta is None else delta.state_digest,
        encoding="delta" if is_delta else "full",
        tensors=state.tensors,
        chunks=delta.chunks if delta is not None and is_delta else state.chunks,
        delta_chunks=delta.chunks if delta is not None and not is_delta else (),
        state_digest=state.state_digest,
        num_bytes=state.num_bytes,
        seeds=tuple(seeds),
        created_unix_ms=created_unix_ms,
        adapter=adapter,
    )
    check_manifest(manifest)
    return manifest


def as_delta(manifest: Manifest) -> Manifest | None:
    """The manifest as that of a delta; None for an anchor that is not one as well."""
    if manifest.encoding == "delta":
        return manifest
    if not manifest.delta_chunks and not manifest.delta_bytes:
        return None
    return replace(manifest, encoding="delta", chunks=manifest.delta_chunks, delta_chunks=())


def as_anchor(manifest: Manifest) -> Manifest | None:
    """The manifest as that of a full anchor alone; None for a delta."""
    if manifest.encoding != "full":
        return None
    return replace(manifest, base=None, base_digest=None, delta_chunks=(), delta_bytes=0)


def all_chunks(manifest: Manifest) -> tuple[ChunkRef, ...]:
    """Every chunk that this record names: with a listing, that of the listing only."""
    return (*manifest.chunks, *manifest.delta_chunks, *manifest.listing)


def transfer_bytes(manifest: Manifest) -> int:
    """What an engine that has nothing fetches for this manifest, as the anchor or the delta that it is."""
    if not manifest.listing:
        return _total(manifest.chunks)
    return _total(manifest.listing) + (manifest.num_bytes if manifest.encoding == "full" else manifest.delta_bytes)


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself.

    Raises:
        WeightsError: sums, sizes, order, ties, digests, seeds or the encoding do not fit.
    """
    check_encoding = _ENCODINGS.get(manifest.encoding)
    if check_encoding is None:
        raise _bad(manifest, f"encoding {manifest.encoding!r} is not one of {', '.join(_ENCODINGS)}")
    try:
        check_digest(manifest.state_digest)
        if manifest.adapter is not None:
            _check_adapter(manifest.adapter)
        _check_chunks(manifest)
        if manifest.listing:
            _check_apart(manifest)
        else:
            _check_tensors(manifest)
            check_encoding(manifest)
        for seed in manifest.seeds:
            check_peer_url(seed)
    except WeightsError as error:
        raise _bad(manifest, error.message) from error


def check_peer_url(url: str) -> str:
    """Give back the base URL of a peer without a trailing slash.

    Raises:
        WeightsError: it is not http(s)://host[:port], or carries credentials.
    """
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError as error:
        raise WeightsError(f"peer URL {url!r} cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or not port_is_good:
        raise WeightsError(f"peer URL {url!r} is not http(s)://host[:port]")
    return url.rstrip("/")


def _check_adapter(adapter: AdapterOf) -> None:
    check_digest(adapter.base_digest)
    check_digest(adapter.merged_digest)
    if adapter.rank < 1 or not (math.isfinite(adapter.alpha) and adapter.alpha > 0):
        raise WeightsError(f"adapters of rank {adapter.rank} and alpha {adapter.alpha}; both have to be above 0")


def _check_tensors(manifest: Manifest) -> None:
    names = [tensor.name for tensor in manifest.tensors]
    if names != sorted(set(names)):
        raise WeightsError("tensor names are not unique and in order")
    by_name = {tensor.name: tensor for tensor in manifest.tensors}
    for tensor in manifest.tensors:
        _check_tensor(tensor, by_name=by_name)
    total_bytes = sum(tensor.num_bytes for tensor in manifest.tensors)
    if total_bytes != manifest.num_bytes:
        raise WeightsError(f"its tensors add up to {total_bytes} bytes, the manifest says {manifest.num_bytes}")


def _check_tensor(tensor: TensorEntry, *, by_name: Mapping[str, TensorEntry]) -> None:
    expected_bytes = tensor_num_bytes(tensor.dtype, tensor.shape)
    if tensor.tied_to is not None:
        owner = by_name.get(tensor.tied_to)
        if owner is None or owner.tied_to is not None:
            raise WeightsError(f"tensor {tensor.name!r} is tied to {tensor.tied_to!r}, which has no bytes of its own")
        if (owner.dtype, owner.shape) != (tensor.dtype, tensor.shape):
            raise WeightsError(f"tensor {tensor.name!r} differs in dtype or shape from {owner.name!r} it is tied to")
        expected_bytes = 0
    if tensor.num_bytes != expected_bytes:
        raise WeightsError(
            f"tensor {tensor.name!r} ({tensor.dtype}, {list(tensor.shape)}) takes {expected_bytes} bytes, "
            f"the manifest says {tensor.num_bytes}"
        )


def _check_chunks(manifest: Manifest) -> None:
    for chunk in all_chunks(manifest):
        check_digest(chunk.digest)
        if not 0 < chunk.num_bytes <= MAX_CHUNK_BYTES:
            raise WeightsError(f"chunk {chunk.digest} has {chunk.num_bytes} bytes, allowed are 1 to {MAX_CHUNK_BYTES}")


def _check_apart(manifest: Manifest) -> None:
    """What a record can say of a version whose tensors and chunks are in a listing."""
    if manifest.tensors or manifest.chunks or manifest.delta_chunks or manifest.encoding == LISTING:
        raise WeightsError("what has a listing names its tensors and chunks there and nowhere else")
    _check_listing(manifest.listing)
    if manifest.num_bytes < 1:
        raise WeightsError(f"a state of {manifest.num_bytes} bytes")
    if manifest.encoding == "delta" or manifest.delta_bytes:
        _check_base(manifest, delta_bytes=manifest.delta_bytes)
    else:
        _check_no_base(manifest)


def _check_listing(chunks: Sequence[ChunkRef]) -> None:
    total_bytes = _total(chunks)
    if not 0 < total_bytes <= MAX_LISTING_BYTES:
        raise WeightsError(f"a listing of {total_bytes} bytes, allowed are 1 to {MAX_LISTING_BYTES}")
    _check_pieces(chunks)


def _check_only_listing(manifest: Manifest) -> None:
    if manifest.tensors or manifest.delta_chunks or manifest.num_bytes:
        raise WeightsError("a listing alone has chunks and nothing else")
    _check_no_base(manifest)
    _check_listing(manifest.chunks)


def _check_full(manifest: Manifest) -> None:
    """The chunks of a full anchor are the stream cut into equal pieces, the last one what is left."""
    total_bytes = _total(manifest.chunks)
    if total_bytes != manifest.num_bytes:
        raise WeightsError(
            f"its {len(manifest.chunks)} chunks add up to {total_bytes} bytes, the manifest says {manifest.num_bytes}"
        )
    _check_pieces(manifest.chunks)
    if manifest.delta_chunks:
        _check_delta_chunks(manifest, chunks=manifest.delta_chunks)
    else:
        _check_no_base(manifest)


def _check_delta(manifest: Manifest) -> None:
    if manifest.delta_chunks:
        raise WeightsError("a delta has its chunks in one place")
    _check_delta_chunks(manifest, chunks=manifest.chunks)


def _check_delta_chunks(manifest: Manifest, *, chunks: Sequence[ChunkRef]) -> None:
    if manifest.delta_bytes:
        raise WeightsError("the length of a delta whose chunks are named is theirs")
    _check_base(manifest, delta_bytes=_total(chunks))
    _check_pieces(chunks)


def _check_no_base(manifest: Manifest) -> None:
    if manifest.base is not None or manifest.base_digest is not None or manifest.delta_bytes:
        raise WeightsError("what is no delta has no base")


def _check_base(manifest: Manifest, *, delta_bytes: int) -> None:
    """A delta goes forward within one lineage, from a base that is named by digest, and is shorter than the state."""
    if manifest.base is None or manifest.base_digest is None:
        raise WeightsError("a delta names its base by version and digest")
    check_digest(manifest.base_digest)
    if manifest.base.lineage != manifest.version.lineage or not manifest.base < manifest.version:
        raise WeightsError(f"its base {manifest.base} is not an earlier version of the same lineage")
    if not 0 < delta_bytes <= manifest.num_bytes + DELTA_SPARE_BYTES:
        raise WeightsError(f"a delta of {delta_bytes} bytes to a state of {manifest.num_bytes} bytes")


def _check_pieces(chunks: Sequence[ChunkRef]) -> None:
    sizes = [chunk.num_bytes for chunk in chunks]
    if sizes and (any(size != sizes[0] for size in sizes[:-1]) or sizes[-1] > sizes[0]):
        raise WeightsError("its chunks are not of one size with a shorter last one")


def _total(chunks: Sequence[ChunkRef]) -> int:
    return sum(chunk.num_bytes for chunk in chunks)


_ENCODINGS: Mapping[str, Callable[[Manifest], None]] = {
    "full": _check_full,
    "delta": _check_delta,
    LISTING: _check_only_listing,
}


def _bad(manifest: Manifest, why: str) -> WeightsError:
    return WeightsError(f"manifest of version {manifest.version} is refused: {why}; the version is not loaded")
