"""What a version's weights are: building a manifest and refusing one that cannot be right.

Role: the gate in front of fetch and decode. Nothing about a manifest is believed before `check_manifest`.
Data in and out: `schemas.records.Manifest`. No torch.
Invariants: after `check_manifest` the tensors fill the canonical stream exactly, and so do the chunks.
Failure: `WeightsError` naming the version and what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipeline.weights.chunks import check_digest
from pipeline.weights.dtypes import tensor_num_bytes
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Manifest, TensorEntry, Version

MAX_CHUNK_BYTES = 256 * 2**20  # a receiver holds `parallel` of them in memory


@dataclass(frozen=True, kw_only=True)
class EncodedState:
    """A model state in chunks: what a manifest says of it."""

    tensors: tuple[TensorEntry, ...]
    chunks: tuple[ChunkRef, ...]
    state_digest: str
    num_bytes: int


def build_manifest(
    state: EncodedState, *, run: str, version: Version, seeds: Sequence[str], created_unix_ms: int
) -> Manifest:
    """The manifest of a full anchor.

    Args:
        seeds: base URLs of peers that have every chunk.

    Raises:
        WeightsError: the result would not pass `check_manifest`.
    """
    manifest = Manifest(
        run=run,
        version=version,
        tensors=state.tensors,
        chunks=state.chunks,
        state_digest=state.state_digest,
        num_bytes=state.num_bytes,
        seeds=tuple(seeds),
        created_unix_ms=created_unix_ms,
    )
    check_manifest(manifest)
    return manifest


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
        _check_tensors(manifest)
        _check_chunks(manifest)
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
    for chunk in manifest.chunks:
        check_digest(chunk.digest)
        if not 0 < chunk.num_bytes <= MAX_CHUNK_BYTES:
            raise WeightsError(f"chunk {chunk.digest} has {chunk.num_bytes} bytes, allowed are 1 to {MAX_CHUNK_BYTES}")


def _check_full(manifest: Manifest) -> None:
    """The chunks of a full anchor are the stream cut into equal pieces, the last one what is left."""
    if manifest.base is not None or manifest.base_digest is not None:
        raise WeightsError("a full anchor has no base")
    total_bytes = sum(chunk.num_bytes for chunk in manifest.chunks)
    if total_bytes != manifest.num_bytes:
        raise WeightsError(
            f"its {len(manifest.chunks)} chunks add up to {total_bytes} bytes, the manifest says {manifest.num_bytes}"
        )
    sizes = [chunk.num_bytes for chunk in manifest.chunks]
    if sizes and (any(size != sizes[0] for size in sizes[:-1]) or sizes[-1] > sizes[0]):
        raise WeightsError("its chunks are not of one size with a shorter last one")


_ENCODINGS: Mapping[str, Callable[[Manifest], None]] = {"full": _check_full}


def _bad(manifest: Manifest, why: str) -> WeightsError:
    return WeightsError(f"manifest of version {manifest.version} is refused: {why}; the version is not loaded")
