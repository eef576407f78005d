"""The one module that touches fastavro.

Role: parse schemas, fingerprint them, write and read one Avro body.
Data in and out: schema text or parsed schemas; bodies are dicts of plain values as fastavro knows them.
Invariants: fastavro's loose types and its many exception types stop here; a body is read to its exact end.
Failure: `CodecError`, with fastavro's exception as the cause.

Followed: Apache Avro 1.12 specification, "Binary Encoding", "Parsing Canonical Form" and "Schema Fingerprints".
"""

from __future__ import annotations

import copy
import io
import json
import sys
from typing import Any, TypeAlias

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.schema import fingerprint as _fingerprint

from schemas.errors import CodecError

Schema: TypeAlias = dict[str, Any]  # an Avro record schema as parsed JSON
Body: TypeAlias = dict[str, Any]  # an Avro record as fastavro writes and reads it

# What fastavro 1.13 raises on values that do not fit the schema.
_WRITE_ERRORS = (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError, BufferError)

# What it raises on bytes that do not follow the schema: an end too early, a union or symbol index out of range, text
# that is not UTF-8, a forged length, a value that cannot be resolved. StopIteration is the end of input in older ones.
_READ_ERRORS = (
    EOFError,
    StopIteration,
    IndexError,
    KeyError,
    OverflowError,
    MemoryError,
    TypeError,
    ValueError,
    fastavro.read.SchemaResolutionError,
)


def parse(text: str) -> Schema:
    """Parse the text of an `.avsc` file whose top is a record.

    Raises:
        CodecError: the text is no JSON, or no valid record schema.
    """
    try:
        parsed = fastavro.parse_schema(json.loads(text, object_hook=_interned))
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        raise CodecError(f"not an Avro schema: {error}") from error
    if not isinstance(parsed, dict) or parsed["type"] != "record":
        raise CodecError(f"the top of a schema must be a record, got {text[:80]!r}")
    _bytes_defaults(parsed)
    return parsed


def fingerprint(schema: Schema) -> bytes:
    """CRC-64-AVRO of the parsing canonical form: 8 bytes, little-endian, as they stand in a frame."""
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(_fingerprint(canonical, "CRC-64-AVRO"))


def write(schema: Schema, body: Body, *, prefix: bytes) -> bytes:
    """`prefix` followed by the binary encoding of `body`.

    Raises:
        CodecError: a value of `body` does not fit `schema`.
    """
    out = io.BytesIO()
    out.write(prefix)
    try:
        fastavro.schemaless_writer(out, schema, body, disable_tuple_notation=True)
    except _WRITE_ERRORS as error:
        name = str(schema["name"])
        raise CodecError(f"this {name} does not fit its schema and was not encoded: {_said(error)}") from error
    return out.getvalue()


def read(data: bytes, start: int, *, writer: Schema, reader: Schema | None = None) -> Body:
    """The body that begins at byte `start` of `data` and ends with it.

    Memory follows `len(data)`, whatever lengths the bytes claim: strings and bytes are cut from `data`, and no item of
    an array or map takes less than one byte. As an object it may take hundreds: `_items` counts them before.

    Args:
        data: the frame.
        start: where the body begins, in bytes.
        writer: the schema the body was written with.
        reader: the schema to resolve to; None: the writer's own.

    Raises:
        CodecError: truncated, followed by further bytes, or not written with `writer`.
    """
    source = io.BytesIO(data)
    source.seek(start)
    try:
        body = fastavro.schemaless_reader(source, writer)
        end = source.tell()
        if reader is not None:
            # The first pass checked the bytes: fastavro skips a removed field without looking for its end.
            source.seek(start)
            body = copy.deepcopy(fastavro.schemaless_reader(source, writer, reader))  # defaults are shared objects
    except _READ_ERRORS as error:
        raise CodecError(
            f"the body of a {writer['name']} cannot be read: {_said(error)} ({len(data)} bytes in all)"
        ) from error
    if end != len(data):
        raise CodecError(f"{len(data) - end} bytes follow the end of a {writer['name']} of {end} bytes")
    return body  # type: ignore[return-value]  # a record schema always gives a dict


def _said(error: BaseException) -> str:
    words = str(error).partition(" from <")[0]  # fastavro names its buffer there, by its address in memory
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _interned(node: dict[str, Any]) -> dict[str, Any]:
    """Field names become attribute names: interned, they are found by identity."""
    if isinstance(node.get("name"), str):
        node["name"] = sys.intern(node["name"])
    return node


def _bytes_defaults(node: Any) -> None:
    """Turn JSON defaults of bytes fields (one code point per byte) into bytes; fastavro hands them on as they are."""
    if isinstance(node, list):
        for part in node:
            _bytes_defaults(part)
    elif isinstance(node, dict):
        for field in node.get("fields", ()):
            if field["type"] == "bytes" and isinstance(field.get("default"), str):
                field["default"] = field["default"].encode("iso-8859-1")
            _bytes_defaults(field["type"])
        _bytes_defaults(node.get("items"))
        _bytes_defaults(node.get("values"))
