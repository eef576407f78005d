"""Element types of tensors on the wire, by their safetensors names.

Role: sizes, without torch. Both sides of the codec and the manifest check read this table.
"""

from __future__ import annotations

import math

from schemas.errors import WeightsError

ITEM_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "F32": 4,
    "I64": 8,
    "F64": 8,
}
FLOATS = ("F16", "BF16", "F32", "F64")
MAX_DIMENSIONS = 64  # as torch and numpy have it
_MAX_BYTES = 2**63 - 1  # of one tensor: sizes travel as 64-bit integers


def tensor_num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor without padding.

    Raises:
        WeightsError: unknown dtype, a negative dimension, too many dimensions, or more bytes than anything has.
    """
    if dtype not in ITEM_BYTES:
        raise WeightsError(f"dtype {dtype!r} is not one of {', '.join(ITEM_BYTES)}; the tensor was refused")
    if len(shape) > MAX_DIMENSIONS:
        raise WeightsError(f"a shape of {len(shape)} dimensions, allowed are {MAX_DIMENSIONS}; the tensor was refused")
    if any(size < 0 for size in shape):
        raise WeightsError(f"shape {shape} has a negative dimension; the tensor was refused")
    num_bytes = ITEM_BYTES[dtype] * math.prod(shape)
    if ITEM_BYTES[dtype] * math.prod(max(size, 1) for size in shape) > _MAX_BYTES:  # an empty one is laid out as well
        raise WeightsError(f"shape {shape} of {dtype} is beyond any memory; the tensor was refused")
    return num_bytes
