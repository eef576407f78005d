"""Records for people: text, tokens, everything or raw bytes.

Role: one function per view, each a pure function from a record to lines.
Invariants: bytes that are no record are shown as such with their hex; control characters of texts are escaped, so that
what a model wrote cannot command a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal

import orjson

from ops.replay.sources import decode
from ops.replay.summaries import printable, summary, token_table
from ops.replay.values import plain
from schemas.errors import CodecError
from schemas.records import Record, Sample
from schemas.routing import id_of
from topics.catalog import Topic
from topics.kafka.raw import RawRecord

View = Literal["text", "tokens", "everything", "raw"]


def lines_of(topic: Topic, raw: RawRecord, *, view: View) -> Iterator[str]:
    """One record as lines, the first one saying where it stands."""
    place = f"{topic.name}[{raw.partition}] {raw.offset}  {_time(raw.unix_ms)}"
    if view == "raw":
        yield place
        yield from _indented(_raw_lines(raw))
        return
    try:
        record = decode(topic, raw)
    except CodecError as error:
        yield f"{place}  NOT A RECORD: {error.message}"
        yield from _indented(_raw_lines(raw))
        return
    yield f"{place}  {_title(record, raw)}"
    if record is not None:
        yield from _indented(_body(record, raw, view=view))


def json_line(topic: Topic, raw: RawRecord) -> bytes:
    """One record as a line of JSON: place, time and key, then `type` and `record`, or `error` and the bytes as hex."""
    values: dict[str, object] = {
        "topic": topic.name,
        "partition": raw.partition,
        "offset": raw.offset,
        "unix_ms": raw.unix_ms,
        "key": None if raw.key is None else raw.key.decode(errors="backslashreplace"),
    }
    try:
        record = decode(topic, raw)
    except CodecError as error:
        values |= {"type": None, "error": error.message, "value_hex": None if raw.value is None else raw.value.hex()}
        values["headers_hex"] = [[name, _hex(value)] for name, value in raw.headers]
    else:
        values["type"] = "Tombstone" if record is None else type(record).__name__
        values["record"] = None if record is None else plain(record)
    return orjson.dumps(values) + b"\n"


def _title(record: Record | None, raw: RawRecord) -> str:
    if record is None:
        return f"tombstone of {_text(raw.key)}"
    identity = id_of(record)
    return type(record).__name__ if identity is None else f"{type(record).__name__} {identity}"


def _body(record: Record, raw: RawRecord, *, view: View) -> Iterator[str]:
    if view == "everything":
        yield f"key: {_text(raw.key)}"
        yield from (f"header {name}: {_text(value)}" for name, value in raw.headers)
        yield from _tree(plain(record))
        return
    yield from summary(record)
    if view == "tokens" and isinstance(record, Sample):
        yield from token_table(record)


def _tree(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str):
            first, *more = printable(value).split("\n")
            yield f"{name}: {first}"
            yield from (f"    {line}" for line in more)
        else:
            yield f"{name}: {orjson.dumps(value).decode()}"


def _raw_lines(raw: RawRecord) -> Iterator[str]:
    yield f"key: {_hex(raw.key)}"
    yield from (f"header {printable(name)}: {_hex(value)}" for name, value in raw.headers)
    yield "value: none (a tombstone)" if raw.value is None else f"value: {len(raw.value)} bytes"
    data = raw.value if raw.value is not None else b""
    yield from (f"  {start:06x}  {data[start : start + 32].hex()}" for start in range(0, len(data), 32))


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _hex(data: bytes | None) -> str:
    return "none" if data is None else data.hex()


def _text(data: bytes | None) -> str:
    return "none" if data is None else printable(data.decode(errors="backslashreplace"))


def _time(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{unix_ms} ms"
