"""What changed between two states, as bytes: new values of changed elements, and where they go.

Role: the codec of deltas, on raw little-endian memory; knows neither tensors' meaning nor chunks.
Data in and out: buffers of uint8, one per tensor; a byte string.
Layout, little-endian: a header (magic, digest of the base), then one record per span of a tensor that changed: tensor
number, first element, number of elements, how many of them changed, element size, kind, blake3 of the span's new bytes;
then the positions (`pipeline.weights.rice`) and the new values, or all values of the span when that is shorter. Spans
are at most `SPAN_ELEMENTS` long, in order, without overlap. What did not change has no bytes at all.
Invariants: values overwrite, so applying twice is applying once; `parse` checks every length, range and position, and
only then can anything be written; nothing is allocated by a number that the bytes claim but do not fill.
Failure: `WeightsError`.

Only changed elements are sent, as in arXiv 2602.03839 (PULSE) and 2605.07330 (SparseRL-Sync).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from pipeline.weights.files import BytesLike
from pipeline.weights.rice import Positions, decode_positions, encode_positions, low_num_bytes
from schemas.errors import WeightsError

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Values: TypeAlias = npt.NDArray[np.unsignedinteger[npt.NBitBase]]

SPAN_ELEMENTS = 2**20  # what is looked at together: positions fit a cache, and a digest covers it
HEADER = Struct("<8s32s")
RECORD = Struct("<IIIIIHBB32s")  # tensor, first / 2**20, elements, changed, unary bytes, shift, kind, size, digest
MAGIC = b"rlwdlt\x01\n"
_WORDS = 2**15  # of 8 bytes compared at a time: what is compared stays in the nearer caches
_DTYPES: dict[int, np.dtype[np.unsignedinteger[npt.NBitBase]]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_SPARSE, _WHOLE = 0, 1


@dataclass(frozen=True, kw_only=True)
class TensorBuffer:
    """The memory of one tensor."""

    data: ByteArray  # flat, contiguous
    item_bytes: int  # of one element: 1, 2, 4 or 8


@dataclass(frozen=True, kw_only=True)
class EncodedSpan:
    """One record in bytes."""

    num_changed: int  # elements
    pieces: tuple[BytesLike, ...]

    @property
    def num_bytes(self) -> int:
        """Of all pieces."""
        return sum(len(piece) for piece in self.pieces)


@dataclass(frozen=True, kw_only=True, eq=False)
class Patch:
    """A checked record: what to write into one span."""

    tensor: int
    first: int  # element
    num_elements: int
    positions: Positions | None  # within the span; None: all of it
    values: Values
    digest: bytes  # of the span afterwards


def header(base_digest: str) -> bytes:
    """How a delta to the base of this state digest begins."""
    return HEADER.pack(MAGIC, bytes.fromhex(base_digest))


def encode_tensor(number: int, *, old: TensorBuffer, new: TensorBuffer, digests: bool = True) -> Iterator[EncodedSpan]:
    """The records of one tensor; none when nothing changed.

    Args:
        number: of the tensor, the same on both sides.
        old: same length and element size as `new`.
        digests: False leaves them zero; for measurements.
    """
    span_bytes = SPAN_ELEMENTS * new.item_bytes
    for index, start in enumerate(range(0, new.data.size, span_bytes)):
        before, after = old.data[start : start + span_bytes], new.data[start : start + span_bytes]
        positions = changed_positions(before, after, item_bytes=new.item_bytes)
        if positions.size > 0:
            digest = blake3(after.data).digest() if digests else bytes(32)
            values = after.view(_DTYPES[new.item_bytes])
            yield _record(positions, values, place=(number, index), digest=digest)


def changed_positions(old: ByteArray, new: ByteArray, *, item_bytes: int) -> Positions:
    """Where elements of two equally long buffers differ as bytes, so that NaN equals NaN and -0 differs from 0."""
    num_words = old.size // 8
    old_words, new_words = old[: num_words * 8].view(np.uint64), new[: num_words * 8].view(np.uint64)
    lanes = 8 // item_bytes
    found: list[npt.NDArray[np.int64]] = []
    for low in range(0, num_words, _WORDS):
        before, after = old_words[low : low + _WORDS], new_words[low : low + _WORDS]
        words = np.flatnonzero(before != after)
        if words.size > 0:
            changes = np.flatnonzero((before[words] ^ after[words]).view(_DTYPES[item_bytes]))
            found.append((words[changes // lanes] + low) * lanes + changes % lanes)
    if num_words * 8 < old.size:
        rest = slice(num_words * 8, None)
        dtype = _DTYPES[item_bytes]
        found.append(np.flatnonzero(old[rest].view(dtype) != new[rest].view(dtype)) + num_words * lanes)
    return np.concatenate(found).astype(np.uint32) if found else np.empty(0, np.uint32)


def parse(data: BytesLike, *, base_digest: str, sizes: Sequence[tuple[int, int]]) -> list[Patch]:
    """Check a whole delta; nothing is written.

    Args:
        base_digest: state digest of the base at hand.
        sizes: (elements, bytes of one) of every tensor.

    Raises:
        WeightsError: the delta belongs to another base, or is not well-formed.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < HEADER.size:
        raise WeightsError(f"a delta of {view.nbytes} bytes ends within its header")
    magic, base = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WeightsError("the bytes do not begin as a delta does")
    if base.hex() != base_digest:
        raise WeightsError(f"the delta belongs to base {base.hex()}, the state at hand is {base_digest}")
    patches: list[Patch] = []
    place = HEADER.size
    while place < view.nbytes:
        patch, place = _parse_record(view, place, sizes=sizes)
        if patches and (patch.tensor, patch.first) <= (patches[-1].tensor, patches[-1].first):
            raise WeightsError(f"the span of tensor {patch.tensor} at element {patch.first} is out of order")
        patches.append(patch)
    return patches


def write_patch(patch: Patch, target: TensorBuffer) -> None:
    """Overwrite the changed elements of a span; `target` is of the size that `parse` was told."""
    span = _span(patch, target).view(_DTYPES[target.item_bytes])
    if patch.positions is None:
        span[:] = patch.values
    else:
        span[patch.positions] = patch.values


def check_patch(patch: Patch, target: TensorBuffer) -> bool:
    """Whether the span now has the bytes that its digest names."""
    return blake3(_span(patch, target).data).digest() == patch.digest


def _span(patch: Patch, target: TensorBuffer) -> ByteArray:
    first = patch.first * target.item_bytes
    return target.data[first : first + patch.num_elements * target.item_bytes]


def _record(positions: Positions, values: Values, *, place: tuple[int, int], digest: bytes) -> EncodedSpan:
    coded = encode_positions(positions)
    size = values.itemsize
    is_whole = len(coded.unary) + len(coded.low) + positions.size * size >= values.nbytes
    num_unary, shift = (0, 0) if is_whole else (len(coded.unary), coded.shift)
    counts = (values.size, positions.size, num_unary, shift)
    head = RECORD.pack(*place, *counts, _WHOLE if is_whole else _SPARSE, size, digest)
    if is_whole:
        return EncodedSpan(num_changed=positions.size, pieces=(head, values.view(np.uint8).data))
    written = values[positions].view(np.uint8).data
    return EncodedSpan(num_changed=positions.size, pieces=(head, coded.unary, coded.low, written))


def _parse_record(view: memoryview, place: int, *, sizes: Sequence[tuple[int, int]]) -> tuple[Patch, int]:
    if view.nbytes - place < RECORD.size:
        raise WeightsError("the delta ends within a record")
    tensor, index, num_elements, count, num_unary, shift, kind, size, digest = RECORD.unpack_from(view, place)
    place += RECORD.size
    if tensor >= len(sizes) or size != sizes[tensor][1]:
        raise WeightsError(f"the delta speaks of tensor {tensor} with elements of {size} bytes, which is not there")
    left = sizes[tensor][0] - index * SPAN_ELEMENTS
    if left <= 0 or num_elements != min(left, SPAN_ELEMENTS):
        raise WeightsError(f"span {index} of tensor {tensor} cannot have {num_elements} elements")
    positions: Positions | None = None
    if kind == _SPARSE:
        low = low_num_bytes(count, shift=shift)
        unary_at, low_at, values_at = place, place + num_unary, place + num_unary + low
        if not 0 < count <= num_elements or values_at + count * size > view.nbytes:
            raise WeightsError(f"span {index} of tensor {tensor}: {count} changes do not fit the delta's bytes")
        positions = decode_positions(
            view[unary_at:low_at], view[low_at:values_at], count=count, shift=shift, bound=num_elements
        )
    elif kind == _WHOLE:
        values_at, count = place, num_elements
        if num_unary or shift or values_at + count * size > view.nbytes:
            raise WeightsError(f"span {index} of tensor {tensor}: {count} values do not fit the delta's bytes")
    else:
        raise WeightsError(f"span {index} of tensor {tensor} is of unknown kind {kind}")
    end = values_at + count * size
    values = np.frombuffer(view[values_at:end], _DTYPES[size])
    first = index * SPAN_ELEMENTS
    patch = Patch(
        tensor=tensor, first=first, num_elements=num_elements, positions=positions, values=values, digest=digest
    )
    return patch, end
