"""Scalars as a TensorBoard event file, without TensorBoard.

Role: the writer behind `rlweave runs export --format tensorboard`. The format is small: records framed by lengths and
checksums (TFRecord), each an `Event` message of protocol buffers (tensorboard/compat/proto/event.proto, summary.proto).
Data in: scalars. Data out: bytes of one file.
Invariants: the same scalars give the same bytes.
Failure: none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

_MASK_DELTA = 0xA282EAD8  # of masked checksums
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One point of one curve."""

    tag: str
    step: int
    unix_ms: int  # 0: unknown
    value: float


def event_file(scalars: Iterable[Scalar]) -> bytes:
    """The content of an `events.out.tfevents` file."""
    version = _field(1, struct.pack("<d", 0.0), wire_type=_FIXED64) + _message(3, b"brain.Event:2")
    return _framed(version) + b"".join(_framed(_event(each)) for each in scalars)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli, RFC 3720)."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _event(scalar: Scalar) -> bytes:
    number = _field(2, struct.pack("<f", scalar.value), wire_type=_FIXED32)
    value = _message(1, scalar.tag.encode()) + number
    wall_time = _field(1, struct.pack("<d", scalar.unix_ms / 1000), wire_type=_FIXED64)
    step = _field(2, _varint(scalar.step), wire_type=_VARINT)
    return wall_time + step + _message(5, _message(1, value))


def _framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _field(number: int, content: bytes, *, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type) + content


def _message(number: int, data: bytes) -> bytes:
    """A field of text, or of another message."""
    return _field(number, _varint(len(data)) + data, wire_type=_BYTES)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def _table() -> tuple[int, ...]:
    entries = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        entries.append(crc)
    return tuple(entries)
