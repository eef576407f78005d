"""Records to bytes and back: Avro single-object encoding.

Role: the only way a record gets onto a topic or off one.
Data in and out: a frozen record; a frame of marker `C3 01`, 8 bytes of CRC-64-AVRO fingerprint (little-endian) of the
writer's schema, and the Avro binary body.
Invariants: `decode(encode(r)) == r`; bytes of any shipped version decode into today's types; a frame is used to its
last byte; the writer's schema is found by its fingerprint and never guessed.
Failure: `CodecError` and nothing else, for any bytes and any record.

Followed: Apache Avro 1.12 specification, "Single-object encoding" and "Schema Resolution".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TypeVar, cast, overload

from schemas import _fastavro, plans, registry
from schemas._fastavro import Schema
from schemas._items import FREE_BYTES, CheckItems, item_check
from schemas.errors import CodecError
from schemas.records import Record
from schemas.registry import Registry, SchemaVersion
from schemas.routing import HEADER_FINGERPRINT, HEADER_SAMPLE_ID, HEADER_VERSION, id_of, key_of, version_of

__all__ = ["MARKER", "Codec", "decode", "encode", "fingerprint_of", "headers_of", "key_of", "record_type_of"]

MARKER = b"\xc3\x01"
_HEAD_BYTES = 10  # marker and fingerprint

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class _Writer:
    head: bytes
    schema: Schema
    to_body: plans.ToBody
    fingerprint_hex: bytes
    check_items: CheckItems


@dataclass(frozen=True, kw_only=True)
class _Reader:
    record_type: type
    writer: Schema
    resolve_to: Schema | None  # None: written with the schema this process uses
    from_body: plans.FromBody
    check_items: CheckItems


class Codec:
    """Encoder and decoder over one registry.

    Raises:
        CodecError: a record type and its current schema do not have the same fields in the same order.
    """

    def __init__(self, known: Registry) -> None:
        self._writers: dict[type, _Writer] = {}
        self._readers: dict[bytes, _Reader] = {}
        for name, record_type in known.types.items():
            self._add(record_type, known.versions_of(name), current=known.current_of(name))

    def _add(self, record_type: type, versions: tuple[SchemaVersion, ...], *, current: SchemaVersion) -> None:
        _check_agreement(record_type, current)
        self._writers[record_type] = _Writer(
            head=MARKER + current.fingerprint,
            schema=current.schema,
            to_body=plans.to_body(record_type),
            fingerprint_hex=current.fingerprint.hex().encode(),
            check_items=item_check(current.schema),
        )
        from_body = plans.from_body(record_type)
        for version in versions:
            self._readers[version.fingerprint] = _Reader(
                record_type=record_type,
                writer=version.schema,
                resolve_to=None if version is current else current.schema,
                from_body=from_body,
                check_items=item_check(version.schema),
            )

    def encode(self, record: Record) -> bytes:
        """One frame.

        Raises:
            CodecError: not a record type, a value that does not fit its field, or more items than a reader accepts.
        """
        writer = self._writer(type(record))
        frame = _fastavro.write(writer.schema, writer.to_body(record), prefix=writer.head)
        if len(frame) > FREE_BYTES:
            writer.check_items(frame, _HEAD_BYTES)
        return frame

    def decode(self, data: bytes) -> Record:
        """The record of one frame.

        Raises:
            CodecError: no frame, unknown fingerprint, truncated, followed by further bytes, or with more items than
                any record has.
        """
        reader = self._readers.get(data[2:_HEAD_BYTES])
        if reader is None or data[:2] != MARKER:
            raise _no_reader(data)
        if len(data) > FREE_BYTES:
            reader.check_items(data, _HEAD_BYTES)
        body = _fastavro.read(data, _HEAD_BYTES, writer=reader.writer, reader=reader.resolve_to)
        return cast("Record", reader.from_body(body))

    def fingerprint_of(self, record_type: type) -> bytes:
        """Fingerprint of the schema that records of this type are written with: 8 bytes, little-endian.

        Raises:
            CodecError: not a record type.
        """
        return self._writer(record_type).head[2:]

    def record_type_of(self, data: bytes) -> type | None:
        """Type of the record in a frame, from its first 10 bytes; None when they name none that is known."""
        reader = self._readers.get(data[2:_HEAD_BYTES])
        return None if reader is None or data[:2] != MARKER else reader.record_type

    def headers_of(self, record: Record) -> list[tuple[str, bytes]]:
        """Kafka headers for routing without decoding: `fp`, and `sid` and `ver` where the record has them.

        Raises:
            CodecError: not a record type.
        """
        headers = [(HEADER_FINGERPRINT, self._writer(type(record)).fingerprint_hex)]
        identity, version = id_of(record), version_of(record)
        if identity is not None:
            headers.append((HEADER_SAMPLE_ID, identity.encode()))
        if version is not None:
            headers.append((HEADER_VERSION, str(version).encode()))
        return headers

    def _writer(self, record_type: type) -> _Writer:
        try:
            return self._writers[record_type]
        except KeyError:
            known = ", ".join(sorted(known.__name__ for known in self._writers))
            raise CodecError(f"{record_type.__name__} is not a record type; the record types are {known}") from None


def _check_agreement(record_type: type, version: SchemaVersion) -> None:
    in_type = [field.name for field in fields(record_type)]
    in_schema = [field["name"] for field in version.schema["fields"]]
    if in_type != in_schema:
        raise CodecError(
            f"{record_type.__name__} has the fields {in_type}, its schema v{version.number} has {in_schema}",
            hint="add a schema version for the changed type, or pin the version the type was made for",
        )


def _no_reader(data: bytes) -> CodecError:
    if len(data) < _HEAD_BYTES:
        return CodecError(
            f"a frame begins with {_HEAD_BYTES} bytes of marker and fingerprint, got {len(data)} bytes in all"
        )
    if data[:2] != MARKER:
        return CodecError(f"a frame begins with the marker {MARKER.hex()}, got {data[:2].hex()}")
    return CodecError(f"unknown schema fingerprint {data[2:_HEAD_BYTES].hex()}: no shipped schema has it")


@cache
def _shipped() -> Codec:
    return Codec(registry.shipped())


def encode(record: Record) -> bytes:
    """One frame of the record, with the newest shipped schema.

    Raises:
        CodecError: not a record type, or a value that does not fit its field.
    """
    return _shipped().encode(record)


@overload
def decode(data: bytes) -> Record: ...
@overload
def decode(data: bytes, expect: type[R]) -> R: ...
def decode(data: bytes, expect: type[R] | None = None) -> Record | R:
    """The record of one frame, written with any shipped schema.

    Args:
        data: the frame.
        expect: the record type that belongs here; None: any.

    Raises:
        CodecError: no frame, unknown fingerprint, truncated, followed by further bytes, or another record type.
    """
    record = _shipped().decode(data)
    if expect is not None and not isinstance(record, expect):
        raise CodecError(f"expected a {expect.__name__}, got a {type(record).__name__}")
    return record


def fingerprint_of(record_type: type) -> bytes:
    """Fingerprint of the newest shipped schema of a record type: 8 bytes, little-endian, as in a frame.

    Raises:
        CodecError: not a record type.
    """
    return _shipped().fingerprint_of(record_type)


def record_type_of(data: bytes) -> type | None:
    """Type of the record in a frame, from its first 10 bytes; None when they name none that is known."""
    return _shipped().record_type_of(data)


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    """Kafka headers for routing without decoding.

    `fp`: fingerprint, hex. `sid`: sample id `run/group/member`, or `run/group` for a prompt or an outcome. `ver`:
    `lineage.step` of a sample's birth version or of a manifest. A header the record has no value for is absent.

    Raises:
        CodecError: not a record type.
    """
    return _shipped().headers_of(record)
