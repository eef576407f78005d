"""Bytes of every shipped schema version stay readable, and today's encoder makes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.codec import decode, encode
from schemas.registry import SchemaVersion, directory_of, shipped
from tests.unit.schemas.examples import EXAMPLES, readable
from tests.unit.schemas.make_golden import GOLDEN

VERSIONS = [version for name in shipped().types for version in shipped().versions_of(name)]


def holds(actual: object, expected: object) -> bool:
    """Whether `actual` has all that `expected` has; a later version may have added fields."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(name in actual and holds(actual[name], value) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(holds, actual, expected))
    return type(actual) is type(expected) and actual == expected


def golden_of(record: str, number: int) -> Path:
    return GOLDEN / f"{directory_of(record)}_v{number}.bin"


def test_every_shipped_version_has_golden_bytes_and_nothing_else_does() -> None:
    wanted = {golden_of(version.record, version.number) for version in VERSIONS}
    assert set(GOLDEN.glob("*.bin")) == wanted


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"{version.record}-v{version.number}")
class TestGolden:
    def test_decodes_to_what_was_written(self, version: SchemaVersion) -> None:
        path = golden_of(version.record, version.number)
        record: object = decode(path.read_bytes(), shipped().types[version.record])
        assert holds(readable(record), json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))

    def test_names_its_schema(self, version: SchemaVersion) -> None:
        path = golden_of(version.record, version.number)
        assert path.read_bytes()[:10] == b"\xc3\x01" + version.fingerprint

    def test_encodes_to_the_same_bytes(self, version: SchemaVersion) -> None:
        if version is not shipped().current_of(version.record):
            return  # old bytes are read, never written
        data = golden_of(version.record, version.number).read_bytes()
        assert encode(decode(data)) == data


def test_examples_cover_every_record_type() -> None:
    assert {type(record).__name__ for record in EXAMPLES} == set(shipped().types)
