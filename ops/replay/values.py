"""Records as plain JSON values: packed arrays as lists, bytes as hex, fields in the order of their type.

Invariants: the same record always gives the same line; a number JSON cannot hold (NaN, infinities) becomes its name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from schemas.errors import CodecError
from schemas.packed import unpack_f32, unpack_i32, unpack_u8
from schemas.records import Record

_PACKED: Mapping[str, Callable[[bytes], list[float] | list[int]]] = {
    "prompt_tokens": lambda data: unpack_i32(data).tolist(),
    "completion_tokens": lambda data: unpack_i32(data).tolist(),
    "token_ids": lambda data: unpack_i32(data).tolist(),
    "logprobs": lambda data: unpack_f32(data).tolist(),
    "turns": lambda data: unpack_i32(data).tolist(),
    "turn_ms": lambda data: unpack_i32(data).tolist(),
    "step_rewards": lambda data: unpack_f32(data).tolist(),
    "loss_mask": lambda data: unpack_u8(data).tolist(),
}


def plain(record: Record) -> dict[str, object]:
    """A record as JSON values."""
    return {item.name: _value(item.name, getattr(record, item.name)) for item in dataclasses.fields(record)}


def _value(name: str, value: object) -> object:
    if isinstance(value, bytes):
        return _numbers(name, value)
    if isinstance(value, float):
        return _number(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _value(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _value("", item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_value("", item) for item in value]
    return value


def _numbers(name: str, data: bytes) -> object:
    unpack = _PACKED.get(name)
    if unpack is None:
        return {"hex": data.hex()}
    try:
        return [_number(number) for number in unpack(data)]
    except CodecError:
        return {"hex": data.hex()}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
