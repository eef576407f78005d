"""Arrays of numbers as bytes, one number after the other, little-endian.

Role: how token ids (int32), log-probabilities (float32), what is for people only (float16) and masks (uint8) travel
inside records.
Data in and out: sequences or one-dimensional arrays in, `bytes` out, and back as read-only arrays over the same memory.
Invariants: `unpack(pack(x)) == x`; byte order does not depend on the machine; nothing is rounded except to float32 and
float16.
Failure: `CodecError` on what the dtype cannot hold and on lengths that are no whole number of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.errors import CodecError

Ints: TypeAlias = Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]
Floats: TypeAlias = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]

_I32: np.dtype[np.int32] = np.dtype("<i4")
_F32: np.dtype[np.float32] = np.dtype("<f4")
_F16: np.dtype[np.float16] = np.dtype("<f2")
_U8: np.dtype[np.uint8] = np.dtype("u1")

T = TypeVar("T", bound=np.generic)


def pack_i32(values: Ints) -> bytes:
    """Pack integers as int32, 4 bytes each.

    Raises:
        CodecError: not one-dimensional, not integers, or outside -2^31 .. 2^31 - 1.
    """
    return _pack_ints(values, dtype=_I32)


def pack_u8(values: Ints) -> bytes:
    """Pack integers or booleans as uint8, 1 byte each.

    Raises:
        CodecError: not one-dimensional, not integers, or outside 0 .. 255.
    """
    return _pack_ints(values, dtype=_U8)


def pack_f32(values: Floats) -> bytes:
    """Pack numbers as float32, 4 bytes each, rounded to nearest. NaN and infinities are kept as they are.

    Raises:
        CodecError: not one-dimensional, not numbers, or finite and beyond float32.
    """
    return _pack_floats(values, dtype=_F32)


def pack_f16(values: Floats) -> bytes:
    """Pack numbers as float16, 2 bytes each, rounded to nearest. NaN and infinities are kept as they are.

    Raises:
        CodecError: not one-dimensional, not numbers, or finite and beyond float16, which ends at 65,504.
    """
    return _pack_floats(values, dtype=_F16)


def unpack_i32(data: bytes) -> NDArray[np.int32]:
    """View packed int32 values, shape [len(data) / 4], read-only, without a copy.

    Raises:
        CodecError: the length is not a multiple of 4 bytes.
    """
    return _view(data, _I32)


def unpack_f32(data: bytes) -> NDArray[np.float32]:
    """View packed float32 values, shape [len(data) / 4], read-only, without a copy.

    Raises:
        CodecError: the length is not a multiple of 4 bytes.
    """
    return _view(data, _F32)


def unpack_f16(data: bytes) -> NDArray[np.float16]:
    """View packed float16 values, shape [len(data) / 2], read-only, without a copy.

    Raises:
        CodecError: the length is not a multiple of 2 bytes.
    """
    return _view(data, _F16)


def unpack_u8(data: bytes) -> NDArray[np.uint8]:
    """View packed uint8 values, shape [len(data)], read-only, without a copy."""
    return _view(data, _U8)


def unpack_mask(data: bytes, *, num_tokens: int) -> NDArray[np.uint8]:
    """A loss mask of so many tokens, uint8; one that was left out trains all of them.

    Raises:
        CodecError: as for `unpack_u8`.
    """
    return unpack_u8(data) if data else np.ones(num_tokens, np.uint8)


def _pack_ints(values: Ints, *, dtype: np.dtype[np.generic]) -> bytes:
    array = _one_dimension(values)
    if array.dtype == dtype:
        return array.tobytes()
    if array.size == 0:
        return b""
    if array.dtype.kind not in "iub":
        raise CodecError(f"cannot pack {array.dtype} as {dtype.name}, only integers that fit")
    low, high = int(array.min()), int(array.max())
    limits = np.iinfo(dtype.name)
    if low < limits.min or high > limits.max:
        raise CodecError(
            f"values from {low} to {high} do not fit {dtype.name}, which holds {limits.min} to {limits.max}"
        )
    return array.astype(dtype).tobytes()


def _pack_floats(values: Floats, *, dtype: np.dtype[np.generic]) -> bytes:
    array = _one_dimension(values)
    if array.dtype == dtype:
        return array.tobytes()
    if array.size and array.dtype.kind not in "fiu":
        raise CodecError(f"cannot pack {array.dtype} as {dtype.name}")
    with np.errstate(over="ignore", invalid="ignore"):
        packed = array.astype(dtype)
    lost = np.isinf(packed) & np.isfinite(array) if array.size else packed
    if lost.any():
        raise CodecError(f"value {array[np.argmax(lost)]} at index {np.argmax(lost)} is beyond {dtype.name}")
    return packed.tobytes()


def _one_dimension(values: Ints | Floats) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"not an array of numbers: {error}") from error
    if array.ndim != 1:
        raise CodecError(f"packed arrays have one dimension, got shape {list(array.shape)}")
    return array


def _view(data: bytes, dtype: np.dtype[T]) -> NDArray[T]:
    if len(data) % dtype.itemsize:
        raise CodecError(f"{len(data)} bytes are no whole number of {dtype.name} values of {dtype.itemsize} bytes")
    array = np.frombuffer(data, dtype=dtype)
    array.flags.writeable = False
    return array
