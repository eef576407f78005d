"""Model states as chunks, and back.

Role: the learner encodes what it trained, an engine decodes what it fetched.
Data in and out: name -> torch tensor or numpy array; a manifest's tensors and chunks.
The canonical stream: tensors in order of their names, row-major, little-endian, no padding; a tied tensor has no bytes.
Dtype names are those of safetensors (https://github.com/huggingface/safetensors#format).
Invariants: streaming, a state is never held twice; nothing is returned before every chunk, every length and the digest
of the whole state have been checked.
Failure: `WeightsError`; a caller keeps serving what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from blake3 import blake3

from pipeline.weights.arrays import (
    Array,
    NumpyArray,
    new_array,
    new_tensor,
    pieces,
    require_little_endian,
    same_content,
    wire_dtype_of,
)
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.dtypes import FLOATS, tensor_num_bytes
from pipeline.weights.manifest import MAX_CHUNK_BYTES, EncodedState, check_manifest
from pipeline.weights.stream import ChunkReader, ChunkWriter
from schemas.errors import WeightsError
from schemas.records import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

DEFAULT_CHUNK_BYTES = 8 * 2**20

_T = TypeVar("_T")


def encode_state(
    tensors: Mapping[str, Array],
    *,
    ties: Mapping[str, str],
    wire_dtype: str | None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    store: ChunkStore,
    owner: str | None = None,
) -> EncodedState:
    """Write a state into the store.

    Args:
        tensors: every tensor by name; tied names may be in it or left out. Any device; torch or numpy.
        ties: tied name -> name of the tensor that owns the bytes.
        wire_dtype: floating tensors are cast to it ("BF16", "F16", "F32"); None keeps each tensor's own.
        owner: lease that pins each chunk before it becomes visible.

    Raises:
        WeightsError: the store is full, a dtype cannot travel, or a tie names what is not equal.
    """
    require_little_endian()
    _check_arguments(wire_dtype=wire_dtype, chunk_bytes=chunk_bytes)
    entries = tensor_entries(tensors, ties=ties, wire_dtype=wire_dtype)
    writer = ChunkWriter(store, chunk_bytes=chunk_bytes, owner=owner)
    for entry in entries:
        if entry.tied_to is None:
            for piece in pieces(tensors[entry.name], dtype=entry.dtype):
                writer.write(piece)
    chunks, state_digest = writer.finish()
    num_bytes = sum(entry.num_bytes for entry in entries)
    return EncodedState(tensors=entries, chunks=chunks, state_digest=state_digest, num_bytes=num_bytes)


def decode_state(manifest: Manifest, store: ChunkStore) -> dict[str, torch.Tensor]:
    """The state a manifest names, as torch tensors on the CPU; tied names share one tensor.

    Raises:
        WeightsError: the manifest contradicts itself, or a chunk is absent, altered, exchanged or of another length.
    """
    return _decode(manifest, store=store, allocate=new_tensor)


def decode_arrays(manifest: Manifest, store: ChunkStore) -> dict[str, NumpyArray]:
    """As `decode_state`, as numpy arrays and without torch.

    Raises:
        WeightsError: as `decode_state`, and for a dtype numpy does not have (BF16, F8).
    """
    return _decode(manifest, store=store, allocate=new_array)


def decode_raw(manifest: Manifest, store: ChunkStore) -> dict[str, NumpyArray]:
    """As `decode_state`, as flat bytes of any dtype, without torch.

    Raises:
        WeightsError: as `decode_state`.
    """
    return _decode(manifest, store=store, allocate=_new_bytes)


def _new_bytes(entry: TensorEntry) -> tuple[NumpyArray, memoryview]:
    array = np.empty(entry.num_bytes, np.uint8)
    return array, array.data


def _decode(
    manifest: Manifest, *, store: ChunkStore, allocate: Callable[[TensorEntry], tuple[_T, memoryview]]
) -> dict[str, _T]:
    require_little_endian()
    check_manifest(manifest)
    reader = ChunkReader(manifest, store=store)
    state: dict[str, _T] = {}
    for entry in manifest.tensors:
        if entry.tied_to is None:
            state[entry.name], target = allocate(entry)
            reader.read_into(target)
    reader.finish()
    for entry in manifest.tensors:
        if entry.tied_to is not None:
            state[entry.name] = state[entry.tied_to]
    return state


def tensor_entries(
    tensors: Mapping[str, Array], *, ties: Mapping[str, str], wire_dtype: str | None
) -> tuple[TensorEntry, ...]:
    """What a manifest says of these tensors.

    Raises:
        WeightsError: a dtype cannot travel, or a tie names what is not equal.
    """
    _check_ties(tensors, ties=ties)
    names: Iterable[str] = sorted({*tensors, *ties})
    return tuple(_entry(name, tensors=tensors, tied_to=ties.get(name), wire_dtype=wire_dtype) for name in names)


def stream_digest(tensors: Mapping[str, Array], *, ties: Mapping[str, str], wire_dtype: str | None) -> str:
    """The digest of a state, as its manifest has it; nothing is stored and no copy of the state is made.

    Raises:
        WeightsError: as `tensor_entries`.
    """
    hasher = blake3()
    for entry in tensor_entries(tensors, ties=ties, wire_dtype=wire_dtype):
        if entry.tied_to is None:
            for piece in pieces(tensors[entry.name], dtype=entry.dtype):
                hasher.update(piece)
    return hasher.hexdigest()


def _entry(name: str, *, tensors: Mapping[str, Array], tied_to: str | None, wire_dtype: str | None) -> TensorEntry:
    array = tensors[name if tied_to is None else tied_to]
    dtype = wire_dtype_of(array, wire_dtype=wire_dtype)
    shape = tuple(array.shape)
    num_bytes = tensor_num_bytes(dtype, shape) if tied_to is None else 0
    return TensorEntry(name=name, dtype=dtype, shape=shape, num_bytes=num_bytes, tied_to=tied_to)


def _check_ties(tensors: Mapping[str, Array], *, ties: Mapping[str, str]) -> None:
    for name, owner in ties.items():
        if owner not in tensors or owner in ties:
            raise WeightsError(f"tensor {name!r} is tied to {owner!r}, which has no bytes of its own; not encoded")
        if name in tensors and not same_content(tensors[name], tensors[owner]):
            raise WeightsError(
                f"tensor {name!r} is declared tied to {owner!r} but differs from it; sending it would lose its values"
            )


def _check_arguments(*, wire_dtype: str | None, chunk_bytes: int) -> None:
    if wire_dtype is not None and wire_dtype not in FLOATS:
        raise WeightsError(f"wire dtype {wire_dtype!r} is not one of {', '.join(FLOATS)}; the state was not encoded")
    if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
        raise WeightsError(f"chunks of {chunk_bytes} bytes: allowed are 1 to {MAX_CHUNK_BYTES}; not encoded")
