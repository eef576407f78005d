"""Tensors and arrays as little-endian bytes, by their safetensors dtype names.

Role: the only place of this package that looks inside a tensor. torch is imported when a torch tensor is handled, not
before; numpy arrays go without it.
Invariants: big tensors are handled in pieces, so a cast or a copy from a device never doubles a state in memory.
Failure: `WeightsError` for a dtype that has no name on the wire.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, Union, cast

import numpy as np
import numpy.typing as npt

from pipeline.weights.dtypes import FLOATS
from schemas.errors import WeightsError
from schemas.records import TensorEntry

if TYPE_CHECKING:
    import torch

NumpyArray: TypeAlias = npt.NDArray[np.generic]
Array: TypeAlias = Union["torch.Tensor", NumpyArray]

_PIECE_ELEMENTS = 4 * 2**20
_NUMPY_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "F16": "<f2",
    "I32": "<i4",
    "F32": "<f4",
    "I64": "<i8",
    "F64": "<f8",
}


def wire_dtype_of(array: Array, *, wire_dtype: str | None) -> str:
    """The dtype name an array travels under: `wire_dtype` if it is floating and one is asked for, else its own.

    Raises:
        WeightsError: no name on the wire stands for the dtype.
    """
    own = _own_dtype(array)
    return wire_dtype if wire_dtype is not None and own in FLOATS else own


def pieces(array: Array, *, dtype: str) -> Iterator[memoryview]:
    """The array's bytes as `dtype`, in row-major order, in non-empty pieces of a few MiB.

    Raises:
        WeightsError: numpy cannot hold `dtype`.
    """
    if isinstance(array, np.ndarray):
        target = np.dtype(_numpy_dtype(dtype))
        flat = array.reshape(-1)
        for start in range(0, flat.size, _PIECE_ELEMENTS):
            piece = np.ascontiguousarray(flat[start : start + _PIECE_ELEMENTS], dtype=target)
            yield piece.view(np.uint8).data
        return
    target_dtype = _torch_dtypes()[dtype]
    flat_tensor = array.detach().reshape(-1)
    for start in range(0, flat_tensor.numel(), _PIECE_ELEMENTS):
        part = flat_tensor[start : start + _PIECE_ELEMENTS].to(device="cpu", dtype=target_dtype)
        yield _bytes_of(part)


def same_content(first: Array, second: Array) -> bool:
    """Whether two arrays have the same shape, dtype and bytes."""
    dtype = _own_dtype(first)
    if tuple(first.shape) != tuple(second.shape) or _own_dtype(second) != dtype:
        return False
    pairs = zip(pieces(first, dtype=dtype), pieces(second, dtype=dtype), strict=True)
    return first is second or all(left == right for left, right in pairs)


def new_tensor(entry: TensorEntry) -> tuple[torch.Tensor, memoryview]:
    """An uninitialised torch tensor for `entry`, and its bytes to be filled."""
    import torch  # noqa: PLC0415  not before a torch tensor is handled

    tensor = torch.empty(entry.shape, dtype=_torch_dtypes()[entry.dtype])
    return tensor, _bytes_of(tensor.reshape(-1)) if entry.num_bytes > 0 else memoryview(bytearray())


def new_array(entry: TensorEntry) -> tuple[NumpyArray, memoryview]:
    """An uninitialised numpy array for `entry`, and its bytes to be filled.

    Raises:
        WeightsError: numpy cannot hold the dtype.
    """
    array = np.empty(entry.shape, dtype=_numpy_dtype(entry.dtype))
    view = array.reshape(-1).view(np.uint8).data if entry.num_bytes > 0 else memoryview(bytearray())
    return array, view


def raw_bytes(array: object) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous numpy array or CPU torch tensor as flat bytes, shared, not copied.

    Raises:
        WeightsError: it is something else, not contiguous, or on a device.
    """
    if isinstance(array, np.ndarray):
        if array.flags.c_contiguous and array.flags.writeable:
            return array.reshape(-1).view(np.uint8)
    else:
        import torch  # noqa: PLC0415  not before a torch tensor is handled

        if isinstance(array, torch.Tensor) and array.is_contiguous() and array.device.type == "cpu":
            return np.frombuffer(_bytes_of(array.detach().reshape(-1)), np.uint8)
    raise WeightsError(f"a {type(array).__name__} has no plain memory to keep as the base of deltas")


def require_little_endian() -> None:
    """Raises WeightsError on a machine whose tensors are not little-endian in memory."""
    if sys.byteorder != "little":
        raise WeightsError("weights travel as little-endian bytes; this machine is big-endian and cannot take part")


def _own_dtype(array: Array) -> str:
    if isinstance(array, np.ndarray):
        wanted = array.dtype.newbyteorder("<") if array.dtype.kind in "iuf" else array.dtype
        names = [name for name, code in _NUMPY_DTYPES.items() if np.dtype(code) == wanted]
    else:
        names = [name for name, dtype in _torch_dtypes().items() if dtype == array.dtype]
    if not names:
        raise WeightsError(f"a tensor of dtype {array.dtype} has no name on the wire; the state was not encoded")
    return names[0]


def _numpy_dtype(dtype: str) -> str:
    if dtype not in _NUMPY_DTYPES:
        raise WeightsError(
            f"numpy has no dtype {dtype}; it has {', '.join(_NUMPY_DTYPES)}", hint="use the torch side of this codec"
        )
    return _NUMPY_DTYPES[dtype]


@cache
def _torch_dtypes() -> dict[str, torch.dtype]:
    import torch  # noqa: PLC0415  not before a torch tensor is handled

    return {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I16": torch.int16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I32": torch.int32,
        "F32": torch.float32,
        "I64": torch.int64,
        "F64": torch.float64,
    }


def _bytes_of(flat: torch.Tensor) -> memoryview:
    """A view of a flat contiguous CPU tensor's memory."""
    import torch  # noqa: PLC0415  not before a torch tensor is handled

    return cast("npt.NDArray[np.uint8]", flat.view(torch.uint8).numpy()).data
