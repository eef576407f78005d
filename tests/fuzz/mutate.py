"""Seeded changes to the inputs of decoders: of bytes, and of JSON values, records and sequences inside them.

Role: what a fuzzer does to an input before it is tried. Structured changes keep the frame around them whole, so that
the checks behind the first one are reached.
Data in and out: bytes and a source of randomness; other bytes. The same seed gives the same bytes.
Failure: none; an input whose structure cannot be read is changed as plain bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeAlias, cast

from schemas.codec import decode, encode
from schemas.errors import CodecError
from schemas.records import Record

Mutator: TypeAlias = Callable[[bytes, Random], bytes]

INTS = (
    *(0, 1, 2, 7, 8, 127, 128, 255, 256, 1023, 65_535, 65_536, 2**20 - 1, 2**20, 2**20 + 1, 2**24, 2**28),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, -1, -2, -128, -(2**31), -(2**31) - 1, -(2**63)),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-9, 1e-45, 0.5, 1e12, 1e38, 1e39, 1e300, 1.7e308, *map(float, ("inf", "-inf", "nan")))
TEXTS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1.5",
        "full",
        "delta",
        "F32",
        "BF16",
        "I64",
        "trained",
        "dropped",
        "stop",
        "a" * 64,
        "0" * 64,
    ),
    *("http://127.0.0.1:8000", "http://[::1", "http://h:99999", "https://u:p@h", "file:///x", "redis://h/0?retry=1"),
    *("9" * 30, "9" * 5000, "\x00", "\u2028", "\ud7ff", "\U0001f600", "../..", "1" * 400, "x" * 3000, "nan", "1e999"),
)
_ODD_BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xC3, 0xFE, 0xFF, 0x22, 0x5B, 0x7B, 0x2E, 0x2F, 0x0A)
_REPEATS = (2, 3, 16, 200, 2000)
_LONGEST = 2**18  # bytes of an input


def mutate_bytes(data: bytes, draw: Random) -> bytes:
    """One to four changes anywhere."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        draw.choice(_BYTE_CHANGES)(changed, draw)
    return bytes(changed[:_LONGEST])


def mutate_json(data: bytes, draw: Random) -> bytes:
    """Change one value somewhere in a JSON document, or in one of several lines."""
    lines = data.split(b"\n")
    number = draw.randrange(len(lines))
    try:
        value = json.loads(lines[number])
        lines[number] = json.dumps(_mutate_value(value, draw), ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return mutate_bytes(data, draw)
    if draw.random() < 0.1:
        lines += [lines[number]] * draw.choice((1, 2, 40))
    return b"\n".join(lines)[:_LONGEST]


def mutate_frame(data: bytes, draw: Random) -> bytes:
    """Change one value somewhere in an encoded record."""
    try:
        changed = encode(_mutate_record(decode(data), draw))
    except CodecError:
        return mutate_bytes(data, draw)
    return mutate_bytes(changed, draw) if draw.random() < 0.05 else changed


def mutate_text(data: bytes, draw: Random) -> bytes:
    """Change a word, a line or a number of a text, or plain bytes."""
    text = data.decode("utf-8", "replace")
    at = draw.randrange(len(text) + 1)
    kind = draw.randrange(5)
    if kind == 0:
        return mutate_bytes(data, draw)
    if kind == 1:
        text = text[:at] + draw.choice(TEXTS) + text[at:]
    elif kind == 2:
        text = text[:at] + str(draw.choice(INTS)) + text[draw.randrange(at, min(len(text), at + 12) + 1) :]
    elif kind == 3:
        lines = text.split("\n")
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
        text = "\n".join(lines)
    else:
        text = text[:at] + draw.choice("[]{}=.\"'#-,:/_\n") * draw.choice((1, 2, 3, 500)) + text[at:]
    return text.encode("utf-8", "surrogatepass")[:_LONGEST]


def mutate_items(data: bytes, draw: Random, *, item: Mutator) -> bytes:
    """Change one item of a packed sequence (see `pack_items`), or drop, repeat or exchange items."""
    items = unpack_items(data)
    if not items or draw.random() < 0.05:
        return mutate_bytes(data, draw)
    at, other = draw.randrange(len(items)), draw.randrange(len(items))
    kind = draw.randrange(6)
    if kind <= 2:
        place, value = items[at]
        items[at] = (place, item(value, draw))
    elif kind == 3:
        items[at] = (draw.randrange(256), items[other][1])
    elif kind == 4:
        items[at], items[other] = items[other], items[at]
    else:
        items[at:at] = [items[other]] * draw.choice((1, 2, 40))
        items = items[: draw.randrange(1, len(items) + 1)] if draw.random() < 0.3 else items
    return pack_items(items)[:_LONGEST]


def pack_items(items: Sequence[tuple[int, bytes]]) -> bytes:
    """A sequence of (small number, bytes) as one input."""
    return b"".join(bytes([place]) + len(value).to_bytes(3, "big") + value for place, value in items)


def unpack_items(data: bytes) -> list[tuple[int, bytes]]:
    """Items of any bytes; the last one may be short."""
    items: list[tuple[int, bytes]] = []
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at + 1 : at + 4], "big")
        items.append((data[at], data[at + 4 : end]))
        at = end
    return items


def _flip(data: bytearray, draw: Random) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _set(data: bytearray, draw: Random) -> None:
    if data:
        data[draw.randrange(len(data))] = draw.choice(_ODD_BYTES)


def _insert(data: bytearray, draw: Random) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.randbytes(draw.choice((1, 2, 4, 9, 40)))


def _cut(data: bytearray, draw: Random) -> None:
    at = draw.randrange(len(data) + 1)
    del data[at : at + draw.choice((1, 2, 4, 8, 64))]


def _end_early(data: bytearray, draw: Random) -> None:
    del data[draw.randrange(len(data) + 1) :]


def _repeat(data: bytearray, draw: Random) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = data[at : at + draw.choice((1, 2, 5, 16, 64))] * draw.choice(_REPEATS)


def _number(data: bytearray, draw: Random) -> None:
    width = draw.choice((1, 2, 4, 8))
    at = draw.randrange(max(1, len(data) - width + 1))
    value = draw.choice(INTS) % 2 ** (8 * width)
    data[at : at + width] = value.to_bytes(width, draw.choice(("little", "big")))


def _varint(data: bytearray, draw: Random) -> None:
    """An Avro number (zigzag, seven bits a byte): a length, a count or an index."""
    value = draw.choice(INTS)
    left, coded = (value << 1) ^ (value >> 63), bytearray()
    while left > 0x7F:
        coded.append(left & 0x7F | 0x80)
        left >>= 7
    at = draw.randrange(len(data) + 1)
    data[at : at + draw.choice((0, 1, 2))] = bytes((*coded, left))


_BYTE_CHANGES: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _flip, _set, _insert, _cut, _end_early, _repeat, _number, _varint),
)


def _mutate_value(value: object, draw: Random) -> object:
    """Change a JSON value at a random depth."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(sorted(value))
        kind = draw.randrange(8)
        if kind == 0:
            return {name: each for name, each in value.items() if name != key}
        if kind == 1:
            return {**value, draw.choice((*TEXTS, key + "x")): value[key]}
        return {**value, key: _mutate_value(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        return _mutate_items(value, draw)
    return draw.choice(_OTHER_VALUES)(value, draw)


def _mutate_items(value: list[object], draw: Random) -> list[object]:
    at = draw.randrange(len(value))
    kind = draw.randrange(6)
    if kind == 0:
        return value[:at]
    if kind == 1:
        return value[:at] + [value[at]] * draw.choice(_REPEATS) + value[at:]
    if kind == 2:
        return value[::-1]
    return [*value[:at], _mutate_value(value[at], draw), *value[at + 1 :]]


def _nested(value: object, draw: Random) -> object:
    for _ in range(draw.choice((1, 2, 200, 900))):
        value = [value]
    return value


_OTHER_VALUES: tuple[Callable[[object, Random], object], ...] = (
    lambda value, draw: draw.choice(INTS),
    lambda value, draw: draw.choice(INTS),
    lambda value, draw: draw.choice(FLOATS),
    lambda value, draw: draw.choice(TEXTS),
    lambda value, draw: draw.choice((None, True, False)),
    lambda value, draw: draw.choice(([], {}, [value], {"a": value})),
    lambda value, draw: value + draw.choice(TEXTS) if isinstance(value, str) else draw.choice(TEXTS),
    lambda value, draw: value + draw.choice((-1, 1)) if isinstance(value, int) else value,
    _nested,
)


def _mutate_record(record: Record, draw: Random) -> Record:
    return cast("Record", _mutate_part(record, draw))


def _mutate_part(value: object, draw: Random) -> object:
    """Change one value somewhere inside a record; a kind of value it cannot hold makes the codec refuse it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = draw.choice([field.name for field in dataclasses.fields(value)])
        return dataclasses.replace(value, **{name: _mutate_part(getattr(value, name), draw)})
    if isinstance(value, tuple):
        return _mutate_tuple(value, draw)
    if isinstance(value, Mapping):
        return {**value, draw.choice((*TEXTS, *value)): draw.choice(FLOATS if _are_numbers(value) else TEXTS)}
    if value is None or draw.random() < 0.1:
        return draw.choice((None, draw.choice(INTS), draw.choice(FLOATS), draw.choice(TEXTS), b"", b"\x00" * 8))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((draw.choice(INTS), value + draw.choice((-1, 1)), value * draw.choice((2, 4, 1024))))
    if isinstance(value, float):
        return draw.choice(FLOATS)
    if isinstance(value, bytes):
        return mutate_bytes(value, draw)
    return draw.choice((draw.choice(TEXTS), f"{value}{draw.choice(TEXTS)}", str(value)[:-1]))


def _mutate_tuple(value: tuple[object, ...], draw: Random) -> tuple[object, ...]:
    if not value:
        return value
    at = draw.randrange(len(value))
    kind = draw.randrange(6)
    if kind == 0:
        return value[:at]
    if kind == 1:
        return value[:at] + (value[at],) * draw.choice(_REPEATS) + value[at:]
    if kind == 2:
        return value[::-1]
    return (*value[:at], _mutate_part(value[at], draw), *value[at + 1 :])


def _are_numbers(value: Mapping[object, object]) -> bool:
    return any(isinstance(each, float) for each in value.values())
