"""Old and new writers and readers mixed on one topic; and the check that says beforehand what would break."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, cast

import pytest

from schemas.codec import Codec
from schemas.errors import CodecError
from schemas.evolution import Reading, check_evolution
from schemas.records import Command, Record, Sample
from schemas.registry import Registry, SchemaVersion, directory_of, record_types, shipped
from tests.unit.schemas.examples import EXAMPLES, SAMPLE

Json = dict[str, Any]
NOTE = {"name": "note", "type": ["null", "string"], "default": None, "doc": "Added."}
EXTRA = {"name": "extra", "type": "bytes", "default": "\u00ff\u0001", "doc": "Added."}
LABELS = {"name": "labels", "type": {"type": "map", "values": "string"}, "default": {}, "doc": "Added."}


def text_of(record: str) -> Json:
    """The schema that this release writes; the tests call it v1, and what they make of it v2."""
    number = shipped().current_of(record).number
    path = files("schemas") / "avro" / directory_of(record) / f"v{number}.avsc"
    return cast("Json", json.loads(path.read_text(encoding="utf-8")))


def second_type(record_type: type, *, added: list[tuple[str, Any, Any]], removed: str | None) -> type:
    """The record type as it would look in the release that has v2."""
    assert dataclasses.is_dataclass(record_type)
    kept = [
        (field.name, field.type, dataclasses.field(default=field.default, default_factory=field.default_factory))
        for field in dataclasses.fields(record_type)
        if field.name != removed
    ]
    new = dataclasses.make_dataclass(
        record_type.__name__,
        [*kept, *((name, hint, dataclasses.field(default=default)) for name, hint, default in added)],
        frozen=True,
        kw_only=True,
    )
    new.__module__ = record_type.__module__  # its annotations name types of that module
    return new


def removable(record: Record) -> str | None:
    """An optional field of the record, if it has one that is null by default."""
    for field in dataclasses.fields(record):
        if field.default is None:
            return field.name
    return None


class Mixed:
    """An old release (writes v1), an old release that knows v2, and a new one (writes v2), for one record."""

    def __init__(self, record: Record) -> None:
        name, self.removed = type(record).__name__, removable(record)
        text = text_of(name)
        text["fields"] = [field for field in text["fields"] if field["name"] != self.removed] + [NOTE, EXTRA]
        added = [("note", str | None, None), ("extra", bytes, b"\xff\x01")]
        new_type = second_type(type(record), added=added, removed=self.removed)
        v1 = SchemaVersion.parse(json.dumps(text_of(name)), number=1)
        v2 = SchemaVersion.parse(json.dumps(text), number=2)
        self.breaks = check_evolution(v1.schema, v2.schema)
        self.unaware = Codec(Registry([v1], types={name: type(record)}))
        self.old = Codec(Registry([v1, v2], types={name: type(record)}, current={name: 1}))
        self.new = Codec(Registry([v1, v2], types={name: new_type}))
        self.old_record = record
        values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        values.pop(str(self.removed), None)
        self.new_record = cast("Record", new_type(**values, note="hello", extra=b"\x00\xfe"))


@pytest.fixture(params=EXAMPLES, ids=lambda record: type(record).__name__)
def mixed(request: pytest.FixtureRequest) -> Mixed:
    return Mixed(request.param)


class TestMixedVersions:
    def test_nothing_is_reported_to_break(self, mixed: Mixed) -> None:
        assert mixed.breaks == []

    def test_old_reads_old_and_new_reads_new(self, mixed: Mixed) -> None:
        assert mixed.old.decode(mixed.old.encode(mixed.old_record)) == mixed.old_record
        assert mixed.new.decode(mixed.new.encode(mixed.new_record)) == mixed.new_record
        assert mixed.old.encode(mixed.old_record) == mixed.unaware.encode(mixed.old_record)

    def test_new_reads_old_with_defaults(self, mixed: Mixed) -> None:
        """Case 15."""
        decoded = mixed.new.decode(mixed.old.encode(mixed.old_record))
        expected = dataclasses.replace(cast("Any", mixed.new_record), note=None, extra=b"\xff\x01")
        assert decoded == expected

    def test_old_reads_new_without_the_added_fields(self, mixed: Mixed) -> None:
        """Case 15."""
        decoded = mixed.old.decode(mixed.new.encode(mixed.new_record))
        absent: dict[str, Any] = {} if mixed.removed is None else {mixed.removed: None}
        assert decoded == dataclasses.replace(mixed.old_record, **absent)

    def test_a_reader_without_the_new_schema_does_not_guess(self, mixed: Mixed) -> None:
        """Case 15."""
        with pytest.raises(CodecError, match="unknown schema fingerprint"):
            mixed.unaware.decode(mixed.new.encode(mixed.new_record))

    def test_truncated_bytes_are_refused_in_every_combination(self, mixed: Mixed) -> None:
        for reader in (mixed.old, mixed.new):
            for frame in (mixed.old.encode(mixed.old_record), mixed.new.encode(mixed.new_record)):
                for length in range(len(frame)):
                    with pytest.raises(CodecError):
                        reader.decode(frame[:length])


def test_defaults_filled_in_are_not_shared_between_records() -> None:
    text = text_of("Sample")
    text["fields"].append(LABELS)
    new_type = dataclasses.make_dataclass(
        "Sample",
        [("labels", dict, dataclasses.field(default_factory=dict))],
        bases=(Sample,),
        frozen=True,
        kw_only=True,
    )
    v1 = SchemaVersion.parse(json.dumps(text_of("Sample")), number=1)
    v2 = SchemaVersion.parse(json.dumps(text), number=2)
    codec, old = Codec(Registry([v1, v2], types={"Sample": new_type})), Codec(Registry([v1], types={"Sample": Sample}))
    first, second = (cast("Any", codec.decode(old.encode(SAMPLE))) for _ in range(2))
    assert first.labels == {}
    assert first.labels is not second.labels


def test_a_type_that_is_not_its_current_schema_is_refused() -> None:
    v2 = SchemaVersion.parse(json.dumps({**text_of("Sample"), "fields": [NOTE]}), number=2)
    with pytest.raises(CodecError, match="its schema v2 has \\['note'\\]"):
        Codec(Registry([SchemaVersion.parse(json.dumps(text_of("Sample")), number=1), v2], types={"Sample": Sample}))


def change(path: str, **values: Any) -> Callable[[Json], None]:
    def apply(schema: Json) -> None:
        field_of(schema, path).update(values)

    return apply


def drop(name: str) -> Callable[[Json], None]:
    def apply(schema: Json) -> None:
        schema["fields"] = [field for field in schema["fields"] if field["name"] != name]

    return apply


def field_of(schema: Json, path: str) -> Json:
    first, _, rest = path.partition(".")
    found = next(field for field in schema["fields"] if field["name"] == first)
    return field_of(inner_record(found["type"]), rest) if rest else cast("Json", found)


def inner_record(node: Any) -> Json:
    if isinstance(node, list):
        return next(inner_record(branch) for branch in node if isinstance(branch, dict))
    return inner_record(node["items"]) if node["type"] == "array" else cast("Json", node)


def add(field: Json) -> Callable[[Json], None]:
    return lambda schema: schema["fields"].append(field)


B, F = Reading.BACKWARD, Reading.FORWARD


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (add({"name": "note", "type": "string"}), [("Sample.note", B)]),
        (drop("seed"), [("Sample.seed", F)]),
        (drop("answer"), []),
        (change("seed", name="salt"), [("Sample.salt", B), ("Sample.seed", F)]),
        (change("seed", name="salt", aliases=["seed"]), [("Sample.seed", F)]),
        (change("seed", type="string"), [("Sample.seed", B), ("Sample.seed", F)]),
        (change("seed", type="double"), [("Sample.seed", F)]),
        (change("seed", type="int"), [("Sample.seed", B)]),
        (change("seed", type=["null", "long"]), [("Sample.seed", F)]),
        (change("answer", type="string", default=""), [("Sample.answer", B)]),
        (
            change("sampling.stop", type={"type": "array", "items": "long"}),
            [("Sample.sampling.stop[]", B), ("Sample.sampling.stop[]", F)],
        ),
        (change("version_runs.version.step", type="double"), [("Sample.version_runs[].version.step", F)]),
        (change("metadata", type={"type": "map", "values": "bytes"}), []),
        (
            change("metadata", type={"type": "map", "values": "long"}),
            [("Sample.metadata[]", B), ("Sample.metadata[]", F)],
        ),
        (change("run", doc="other words"), []),
        (lambda schema: schema.update(name="Rollout"), [("Sample", B), ("Sample", F)]),
    ],
)
def test_breaks_are_named(alter: Callable[[Json], None], expected: list[tuple[str, Reading]]) -> None:
    old, text = text_of("Sample"), copy.deepcopy(text_of("Sample"))
    alter(text)
    breaks = check_evolution(
        SchemaVersion.parse(json.dumps(old), number=1).schema, SchemaVersion.parse(json.dumps(text), number=2).schema
    )
    assert [(found.path, found.reading) for found in breaks if not found.warning] == expected


UNKNOWN_B = "A.x: the reader does not know the symbols ['B'] and has no default"


def one_field(node: Any) -> Json:
    text = json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": node}]})
    return SchemaVersion.parse(text, number=1).schema


def enum(*symbols: str, **more: Any) -> Json:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int) -> Json:
    return {"type": "fixed", "name": "F", "size": size}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (enum("A", "B"), enum("A"), [f"{UNKNOWN_B} (backward reading)"]),
        (enum("A"), enum("A", "B"), [f"{UNKNOWN_B} (forward reading)"]),
        (enum("A", "B"), enum("A", default="A"), []),
        (
            fixed(4),
            fixed(8),
            [
                "A.x: 4 bytes cannot be read as 8 (backward reading)",
                "A.x: 8 bytes cannot be read as 4 (forward reading)",
            ],
        ),
        (["null", "long"], ["null", "long", "string"], ["A.x: string is not among ['null', 'long'] (forward reading)"]),
        ("int", "long", ["A.x: long cannot be read as int (forward reading)"]),
    ],
)
def test_breaks_say_why(old: Any, new: Any, said: list[str]) -> None:
    assert [str(found) for found in check_evolution(one_field(old), one_field(new))] == said


def test_a_changed_default_is_a_warning() -> None:
    text = text_of("Sample")
    field_of(text, "sampling.top_k")["default"] = 50
    new = SchemaVersion.parse(json.dumps(text), number=2).schema
    (found,) = check_evolution(SchemaVersion.parse(json.dumps(text_of("Sample")), number=1).schema, new)
    assert (found.path, found.warning) == ("Sample.sampling.top_k", True)
    assert found.why == "default changed from 0 to 50"


def test_no_item_of_an_array_or_map_takes_no_bytes() -> None:
    """`_fastavro.read` bounds memory by this: a forged count could otherwise fill it without a byte of input."""
    for name in record_types():
        for version in shipped().versions_of(name):
            assert '"items": "null"' not in json.dumps(version.schema, default=repr)
            assert '"fields": []' not in json.dumps(version.schema, default=repr)


def test_a_release_of_command_v1_reads_v2_without_waves_and_v2_reads_v1_as_all_at_once() -> None:
    versions = shipped().versions_of("Command")
    new = Codec(Registry(versions, types={"Command": Command}))
    v1_fields = [field["name"] for field in versions[0].schema["fields"]]
    old_type = dataclasses.make_dataclass(
        "Command", [(field.name, field.type) for field in dataclasses.fields(Command) if field.name in v1_fields]
    )
    old_type.__module__ = Command.__module__
    old = Codec(Registry(versions[:2], types={"Command": old_type}, current={"Command": 1}))
    command = next(record for record in EXAMPLES if isinstance(record, Command))
    read = old.decode(new.encode(command))
    assert {name: getattr(read, name) for name in v1_fields} == {name: getattr(command, name) for name in v1_fields}
    assert not hasattr(read, "waves")
    back = cast("Command", new.decode(old.encode(read)))
    assert back == dataclasses.replace(command, targets=(), waves=(), wave=0, rates={})
