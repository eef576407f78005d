"""Increasing positions in close to the fewest bits: Rice codes of the gaps between them.

Role: the index side of a delta (`pipeline.weights.delta`).
Data in and out: strictly increasing uint32 positions; two byte strings. A gap g (elements passed over since the last
position) is written as g >> shift in unary, zeros ended by a one, in the first string, and its low `shift` bits in the
second: whole bytes first, one plane per byte, then what is left of `shift`, eight numbers in as many bytes as bits.
Positions that are independent give geometric gaps, for which this is at most 0.03 bits per position from the entropy
(Rice 1979; Kiely, IPN PR 42-159, 2004); at shift 0 it is a bitmap, which suits clusters.
Invariants: decoding allocates in proportion to the bytes given, never to a number that they claim.
Failure: `WeightsError` for bytes that are no positions below the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.weights.files import BytesLike
from schemas.errors import WeightsError

Positions: TypeAlias = npt.NDArray[np.uint32]

MAX_SHIFT = 24


@dataclass(frozen=True, kw_only=True)
class Coded:
    """Positions in bits."""

    shift: int  # 0 .. MAX_SHIFT
    unary: bytes
    low: bytes


def low_num_bytes(count: int, *, shift: int) -> int:
    """Bytes of the second string for `count` positions."""
    planes, rest = divmod(shift, 8)
    return count * planes + -(-count * rest // 8)


def encode_positions(positions: Positions) -> Coded:
    """Code strictly increasing positions, at least one."""
    gaps = np.empty(positions.size, np.uint32)
    gaps[0] = positions[0]
    np.subtract(positions[1:], positions[:-1], out=gaps[1:])
    gaps[1:] -= 1
    shift = _best_shift(gaps)
    ends = gaps >> np.uint32(shift)
    ends += 1
    np.cumsum(ends, out=ends)
    bits = np.zeros(int(ends[-1]), np.uint8)
    ends -= 1
    bits[ends] = 1
    low = _pack_low(gaps, shift=shift)
    return Coded(shift=shift, unary=np.packbits(bits, bitorder="little").tobytes(), low=low)


def decode_positions(unary: BytesLike, low: BytesLike, *, count: int, shift: int, bound: int) -> Positions:
    """The positions that were coded.

    Args:
        count: how many.
        bound: all are below it.

    Raises:
        WeightsError: lengths, the number of positions or their range do not fit.
    """
    if not 0 < count <= bound or not 0 <= shift <= MAX_SHIFT:
        raise WeightsError(f"{count} positions with shift {shift} below {bound} cannot be")
    if len(low) != low_num_bytes(count, shift=shift):
        raise WeightsError(f"{len(low)} bytes of low bits do not hold {count} positions of shift {shift}")
    if len(unary) > (count + (bound >> shift)) // 8 + 1:
        raise WeightsError(f"{len(unary)} bytes of unary codes are too many for {count} positions below {bound}")
    bits = np.unpackbits(np.frombuffer(unary, np.uint8), bitorder="little")
    ones = np.flatnonzero(bits.view(np.bool_))
    if ones.size != count:
        raise WeightsError(f"the unary codes hold {ones.size} positions, {count} were announced")
    if bits.size - int(ones[-1]) > 8:
        raise WeightsError("bytes are left after the last position")
    gaps = _unpack_low(low, count=count, shift=shift)
    num_zeros = int(ones[-1]) - (count - 1)
    last = (num_zeros << shift) + int(gaps.sum(dtype=np.uint64)) + count - 1
    if last >= bound:
        raise WeightsError(f"the last position is {last}, all must be below {bound}")
    gaps[0] += np.uint32(int(ones[0]) << shift)
    gaps[1:] += (np.diff(ones) - 1).astype(np.uint32) << np.uint32(shift)
    gaps += 1
    gaps[0] -= 1
    return np.cumsum(gaps, out=gaps)


def _best_shift(gaps: Positions) -> int:
    """The better one of what suits the mean gap (independent positions) and the median gap (clusters)."""
    total, count = int(gaps.sum(dtype=np.uint64)), gaps.size
    candidates = {_shift_of(math.log(2) * total / count), _shift_of(float(np.median(gaps[:: max(1, count // 1024)])))}
    if len(candidates) == 1:
        return candidates.pop()
    return min(candidates, key=lambda shift: count * shift + int((gaps >> np.uint32(shift)).sum(dtype=np.uint64)))


def _shift_of(typical_gap: float) -> int:
    return min(MAX_SHIFT, round(math.log2(max(1.0, typical_gap))))


def _pack_low(gaps: Positions, *, shift: int) -> bytes:
    planes, rest = divmod(shift, 8)
    parts = [(gaps >> np.uint32(8 * plane)).astype(np.uint8).tobytes() for plane in range(planes)]
    if rest:
        high = gaps >> np.uint32(8 * planes)
        high &= np.uint32((1 << rest) - 1)
        eights = np.zeros((-(-gaps.size // 8), 8), np.uint64)
        eights.reshape(-1)[: gaps.size] = high
        words = eights[:, 0].copy()
        for column in range(1, 8):
            words |= eights[:, column] << np.uint64(rest * column)
        packed = words.view(np.uint8).reshape(-1, 8)[:, :rest].tobytes()
        parts.append(packed[: -(-gaps.size * rest // 8)])
    return b"".join(parts)


def _unpack_low(low: BytesLike, *, count: int, shift: int) -> Positions:
    planes, rest = divmod(shift, 8)
    data = np.frombuffer(low, np.uint8)
    gaps = np.zeros(count, np.uint32)
    for plane in range(planes):
        gaps |= data[plane * count : (plane + 1) * count].astype(np.uint32) << np.uint32(8 * plane)
    if rest:
        num_words = -(-count // 8)
        padded = np.zeros(num_words * rest, np.uint8)
        packed = data[planes * count :]
        padded[: packed.size] = packed
        words = np.zeros((num_words, 8), np.uint8)
        words[:, :rest] = padded.reshape(num_words, rest)
        wide = words.view(np.uint64).reshape(-1)
        high = np.empty((num_words, 8), np.uint32)
        for column in range(8):
            high[:, column] = (wide >> np.uint64(rest * column)) & np.uint64((1 << rest) - 1)
        gaps |= high.reshape(-1)[:count] << np.uint32(8 * planes)
    return gaps
