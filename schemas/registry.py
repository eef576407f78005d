"""Every schema version ever shipped, found by record or by fingerprint.

Role: answers which schema wrote some bytes, and which one this process reads and writes.
Data in and out: `avro/<record>/v<number>.avsc` files; `SchemaVersion` values.
Invariants: a fingerprint names one version; numbers of a record run from 1 without gaps; a shipped file never changes.
Failure: `CodecError` naming the file or record at fault.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from schemas import _fastavro, records
from schemas._fastavro import Schema
from schemas.errors import CodecError

_VERSION_FILE = re.compile(r"v([1-9][0-9]*)\.avsc")


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One version of the schema of one record."""

    record: str  # name of the record type
    number: int  # from 1
    schema: Schema
    fingerprint: bytes  # 8 bytes, little-endian, as in a frame

    @classmethod
    def parse(cls, text: str, *, number: int) -> SchemaVersion:
        """Build a version from the text of its `.avsc`.

        Raises:
            CodecError: not a valid record schema.
        """
        schema = _fastavro.parse(text)
        record = str(schema["name"]).rpartition(".")[2]
        return cls(record=record, number=number, schema=schema, fingerprint=_fastavro.fingerprint(schema))


class Registry:
    """A set of schema versions and the record types they are read into.

    Args:
        versions: all known versions.
        types: record types by name.
        current: version number per record that this process reads into and writes; the newest where not named. A
            release that pins an older one can read what newer writers send before it sends that itself.

    Raises:
        CodecError: two versions share a fingerprint, numbers have a gap, or a record has no version.
    """

    def __init__(
        self, versions: Iterable[SchemaVersion], *, types: Mapping[str, type], current: Mapping[str, int] | None = None
    ) -> None:
        by_fingerprint: dict[bytes, SchemaVersion] = {}
        by_record: dict[str, list[SchemaVersion]] = {name: [] for name in types}
        for version in versions:
            other = by_fingerprint.setdefault(version.fingerprint, version)
            if other is not version:
                raise CodecError(
                    f"{version.record} v{version.number} and {other.record} v{other.number} have the same fingerprint, "
                    "so their bytes cannot be told apart",
                    hint="a new version must change a name or a type; docs and defaults alone make no new version",
                )
            by_record.setdefault(version.record, []).append(version)
        self.types: Mapping[str, type] = MappingProxyType(dict(types))
        self.by_fingerprint: Mapping[bytes, SchemaVersion] = MappingProxyType(by_fingerprint)
        self._by_record = {name: _in_order(name, found) for name, found in by_record.items()}
        self._current = dict(current) if current is not None else {}

    def versions_of(self, record: str) -> tuple[SchemaVersion, ...]:
        """All versions of a record, oldest first.

        Raises:
            CodecError: no such record.
        """
        try:
            return self._by_record[record]
        except KeyError:
            raise CodecError(f"no schema for record {record!r}; known: {', '.join(sorted(self._by_record))}") from None

    def current_of(self, record: str) -> SchemaVersion:
        """The version this process writes, and reads into.

        Raises:
            CodecError: no such record, or no version of the number that was pinned.
        """
        versions = self.versions_of(record)
        number = self._current.get(record, versions[-1].number)
        if not 1 <= number <= len(versions):
            raise CodecError(f"{record} is pinned to v{number}, but only v1 to v{len(versions)} exist")
        return versions[number - 1]


def _in_order(record: str, versions: list[SchemaVersion]) -> tuple[SchemaVersion, ...]:
    ordered = tuple(sorted(versions, key=lambda version: version.number))
    numbers = [version.number for version in ordered]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise CodecError(f"versions of {record} must run from 1 without gaps, found {numbers}")
    return ordered


def record_types() -> dict[str, type]:
    """The record types of `schemas.records`, by name."""
    return {record_type.__name__: record_type for record_type in typing.get_args(records.Record)}


def directory_of(record: str) -> str:
    """Folder name of a record's versions: `PromptGroup` lives in `prompt_group`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", record).lower()


def read_shipped() -> list[SchemaVersion]:
    """Read every `.avsc` of the installed package.

    Raises:
        CodecError: a file has an unexpected name, content, or folder.
    """
    found = []
    for folder in (files("schemas") / "avro").iterdir():
        for file in folder.iterdir():
            name = f"{folder.name}/{file.name}"
            match = _VERSION_FILE.fullmatch(file.name)
            if match is None:
                raise CodecError(f"unexpected file schemas/avro/{name}, only v<number>.avsc belongs there")
            version = SchemaVersion.parse(file.read_text(encoding="utf-8"), number=int(match[1]))
            if directory_of(version.record) != folder.name:
                raise CodecError(f"schemas/avro/{name} holds a schema of {version.record}")
            found.append(version)
    return found


@cache
def shipped() -> Registry:
    """The registry of this installation; files are read at the first call.

    Raises:
        CodecError: the installed files are not as they were shipped.
    """
    return Registry(read_shipped(), types=record_types())
