"""The `.avsc` files say the same as the record types, and say what every field means."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Iterator

import pytest
from fastavro.schema import fingerprint as of_text

from schemas import records
from schemas._fastavro import fingerprint, parse
from schemas.codec import fingerprint_of
from schemas.errors import CodecError
from schemas.evolution import check_evolution
from schemas.registry import Registry, SchemaVersion, record_types, shipped

RECORDS = sorted(record_types())


def schemas_inside(node: object) -> Iterator[dict[str, typing.Any]]:
    """Every record schema in a schema, itself first."""
    if isinstance(node, list):
        for branch in node:
            yield from schemas_inside(branch)
    elif isinstance(node, dict):
        if node.get("type") == "record":
            yield node
        for field in node.get("fields", ()):
            yield from schemas_inside(field["type"])
        for inner in ("items", "values"):
            yield from schemas_inside(node.get(inner))


def plain_default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return list(field.default) if isinstance(field.default, tuple) else field.default


@pytest.mark.parametrize("name", RECORDS)
class TestCurrentSchema:
    def test_has_the_fields_and_defaults_of_the_record_type(self, name: str) -> None:
        for schema in schemas_inside(shipped().current_of(name).schema):
            record_type = getattr(records, schema["name"].rpartition(".")[2])
            in_type = {field.name: plain_default(field) for field in dataclasses.fields(record_type)}
            in_schema = {field["name"]: field.get("default", dataclasses.MISSING) for field in schema["fields"]}
            assert list(in_type) == list(in_schema)
            assert in_type == in_schema

    def test_optional_fields_are_null_first(self, name: str) -> None:
        for schema in schemas_inside(shipped().current_of(name).schema):
            hints = typing.get_type_hints(getattr(records, schema["name"].rpartition(".")[2]))
            for field in schema["fields"]:
                optional = type(None) in typing.get_args(hints[field["name"]])
                assert optional == (isinstance(field["type"], list) and field["type"][0] == "null"), field["name"]

    def test_documents_every_record_and_field(self, name: str) -> None:
        for schema in schemas_inside(shipped().current_of(name).schema):
            assert schema["doc"].endswith("."), schema["name"]
            for field in schema["fields"]:
                assert len(field["doc"]) > 15, f"{schema['name']}.{field['name']}"
                if "bytes" in field["type"] and schema["name"] != "rlweave.DeadLetter":
                    assert "packed" in field["doc"], f"{schema['name']}.{field['name']} must name its dtype"
                if field["name"].endswith("_ms"):
                    assert "milliseconds" in field["doc"], f"{schema['name']}.{field['name']} must name its unit"

    def test_versions_can_be_mixed(self, name: str) -> None:
        versions = shipped().versions_of(name)
        for old, new in itertools.pairwise(versions):
            breaks = [str(found) for found in check_evolution(old.schema, new.schema)]
            assert not breaks, f"v{old.number} to v{new.number}: {breaks}"


@pytest.mark.parametrize(
    ("canonical_type", "expected"),
    # apache/avro share/test/data/schema-tests.txt gives these as signed 64-bit numbers.
    [("null", 7195948357588979594), ("boolean", -6970731678124411036), ("int", 8247732601305521295)],
)
def test_fingerprint_has_the_known_value(canonical_type: str, expected: int) -> None:
    hexadecimal = of_text(f'"{canonical_type}"', "CRC-64-AVRO")
    assert int.from_bytes(bytes.fromhex(hexadecimal), "little", signed=True) == expected


def crc_64_avro(text: str) -> bytes:
    """The bitwise definition of the specification, without a table."""
    value = 0xC15D213AA4D7A795
    for byte in text.encode():
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0xC15D213AA4D7A795 if value & 1 else 0)
    return value.to_bytes(8, "little")


def test_fingerprint_is_of_the_canonical_form() -> None:
    text = """{"type": "record", "namespace": "rlweave", "doc": "x", "name": "A", "fields": [
        {"doc": "d", "type": ["null", {"type": "record", "name": "B", "fields": []}], "name": "b", "default": null},
        {"name": "c", "type": {"items": "rlweave.B", "type": "array"}}, {"name": "m", "type": {"type": "bytes"}}]}"""
    canonical = (
        '{"name":"rlweave.A","type":"record","fields":[{"name":"b","type":["null",'
        '{"name":"rlweave.B","type":"record","fields":[]}]},{"name":"c","type":{"type":"array","items":"rlweave.B"}},'
        '{"name":"m","type":"bytes"}]}'
    )
    assert fingerprint(parse(text)) == crc_64_avro(canonical)


def test_fingerprints_differ() -> None:
    assert len({fingerprint_of(record_type) for record_type in record_types().values()}) == len(RECORDS)


def version(number: int, fields: str) -> SchemaVersion:
    return SchemaVersion.parse(f'{{"type": "record", "name": "A", "fields": [{fields}]}}', number=number)


X, Y = '{"name": "x", "type": "long"}', '{"name": "y", "type": "long", "default": 0}'


def test_registry_refuses_a_fingerprint_used_twice() -> None:
    with pytest.raises(CodecError, match="A v2 and A v1 have the same fingerprint"):
        Registry([version(1, X), version(2, X)], types={})


def test_registry_refuses_a_gap() -> None:
    with pytest.raises(CodecError, match=r"without gaps, found \[1, 3\]"):
        Registry([version(1, X), version(3, f"{X}, {Y}")], types={})


def test_registry_refuses_a_pin_that_does_not_exist() -> None:
    with pytest.raises(CodecError, match="pinned to v2"):
        Registry([version(1, X)], types={}, current={"A": 2}).current_of("A")


@pytest.mark.parametrize("text", ["", "[]", "{}", '"string"', '{"type": "record"}'])
def test_what_is_no_record_schema_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        parse(text)
