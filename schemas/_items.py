"""How many items a frame's arrays and maps hold, counted before it is decoded.

Role: the guard against frames that are small on the wire and huge in memory: an item may take two bytes of a frame
(which compress to nothing) and hundreds of bytes as an object.
Data in: the bytes of an Avro body and its schema. Data out: nothing, or the refusal.
Invariants: only long frames are counted, since a short one cannot hold many items; counting allocates nothing and stops
at the limit. Whether the bytes follow the schema is not judged here: the decoder does that.
Failure: `CodecError` for more items than any stage of ours writes.

Followed: Apache Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from schemas._fastavro import Schema
from schemas.errors import CodecError

FREE_BYTES = 2**17  # a frame up to here holds 65,536 records at most, as none takes less than two bytes
_BYTES_PER_UNIT = 16  # in longer frames; a manifest of 90,000 tensors in 160,000 chunks has 25
_RECORD_UNITS, _OTHER_UNITS = 2, 1
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass
class _Walk:
    """A place in the bytes of one frame."""

    data: bytes
    at: int
    left: int  # units that may still come

    def long(self) -> int:
        value, shift = 0, 0
        while (byte := self.data[self.at]) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            self.at += 1
            if shift > 63:
                raise IndexError("no number is that long")
        self.at += 1
        value |= byte << shift
        return (value >> 1) ^ -(value & 1)

    def skip(self, num_bytes: int) -> None:
        if num_bytes < 0:
            raise IndexError("a length below 0")
        self.at += num_bytes

    def count(self, num_units: int) -> None:
        self.left -= num_units
        if self.left < 0:
            raise CodecError(
                f"a frame of {len(self.data)} bytes holds more than {allowed_units(len(self.data)) // _RECORD_UNITS} "
                "records, or twice as many plain values, in its arrays; it is refused, as it would fill the memory"
            )


Step: TypeAlias = Callable[[_Walk], None]
CheckItems: TypeAlias = Callable[[bytes, int], None]


def allowed_units(num_bytes: int) -> int:
    """Most items of all arrays and maps together in a frame of so many bytes, a record counted twice."""
    return FREE_BYTES + num_bytes // _BYTES_PER_UNIT


def item_check(schema: Schema) -> CheckItems:
    """A function of a frame and where its body begins.

    It raises CodecError when the frame holds more than `allowed_units`.
    """
    step = _step(schema, {})

    def check(data: bytes, start: int) -> None:
        if len(data) <= FREE_BYTES:
            return
        try:
            step(_Walk(data, start, allowed_units(len(data))))
        except IndexError:  # cut short, or no such branch: the decoder will say so
            return

    return check


def _step(schema: object, named: dict[str, Step]) -> Step:
    """How to pass over one value."""
    if isinstance(schema, list):
        return _union([_step(branch, named) for branch in schema])
    if isinstance(schema, str):
        return named[schema] if schema in named else _plain(schema)
    if not isinstance(schema, dict):
        raise CodecError(f"not an Avro schema: {schema!r:.80}")
    kind = schema["type"]
    if kind == "array":
        item = _step(schema["items"], named)
        return _blocks([item], num_units=_OTHER_UNITS if _is_plain(schema["items"]) else _RECORD_UNITS)
    if kind == "map":
        return _blocks([_text, _step(schema["values"], named)], num_units=_OTHER_UNITS)
    if kind != "record":
        return _step(kind, named)
    steps: list[Step] = []
    named[str(schema["name"])] = record = _all_of(steps)
    steps += [_step(field["type"], named) for field in schema["fields"]]
    return record


def _is_plain(schema: object) -> bool:
    return isinstance(schema, str) and (schema in _FIXED or schema in ("bytes", "string", "int", "long"))


def _plain(name: str) -> Step:
    if name in _FIXED:
        num_bytes = _FIXED[name]
        return lambda walk: walk.skip(num_bytes)
    return _text if name in ("bytes", "string") else _number


def _number(walk: _Walk) -> None:
    walk.long()


def _text(walk: _Walk) -> None:
    walk.skip(walk.long())


def _union(branches: list[Step]) -> Step:
    return lambda walk: branches[walk.long()](walk)


def _all_of(steps: list[Step]) -> Step:
    def record(walk: _Walk) -> None:
        for step in steps:
            step(walk)

    return record


def _blocks(item: list[Step], *, num_units: int) -> Step:
    """Blocks of items: a count, below 0 when the block's length in bytes follows, then the items; 0 ends them."""

    def blocks(walk: _Walk) -> None:
        while count := walk.long():
            if count < 0:
                walk.long()
            walk.count(abs(count) * num_units)
            for _ in range(abs(count)):
                for step in item:
                    step(walk)

    return blocks
