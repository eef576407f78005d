"""What replay shows: every record type in every view, bytes that are none, and JSON lines that keep everything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ops.replay.show import View, json_line, lines_of
from schemas.codec import encode, headers_of, key_of
from schemas.packed import pack_f32
from schemas.records import Command, Record
from tests.unit.ops.little_run import sample
from tests.unit.schemas.examples import EXAMPLES
from topics.catalog import CATALOG, COMMANDS, SAMPLES, WEIGHTS, Topic
from topics.kafka.raw import RawRecord


def topic_of(record: Record) -> Topic:
    return next(topic for topic in CATALOG if isinstance(record, topic.records))


def raw(record: Record) -> RawRecord:
    return RawRecord(
        topic="",
        partition=1,
        offset=7,
        key=key_of(record),
        value=encode(record),
        headers=tuple(headers_of(record)),
        unix_ms=0,
    )


VIEWS: tuple[View, ...] = ("text", "tokens", "everything", "raw")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_every_record_type_has_every_view(record: Record, view: View) -> None:
    lines = list(lines_of(topic_of(record), raw(record), view=view))
    assert lines[0].startswith(f"{topic_of(record).name}[1] 7  1970-01-01T00:00:00.000Z")
    assert len(lines) > 1
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_json_lines_keep_every_field_in_order(record: Record) -> None:
    line = json.loads(json_line(topic_of(record), raw(record)))
    assert list(line) == ["topic", "partition", "offset", "unix_ms", "key", "type", "record"]
    assert list(line["record"]) == list(type(record).__dataclass_fields__)
    assert json_line(topic_of(record), raw(record)) == json_line(topic_of(record), raw(record))


def test_a_publish_command_tells_its_wave() -> None:
    command = next(record for record in EXAMPLES if isinstance(record, Command))
    assert "publish to rollout: version 1.6, wave 2 of 2, " in "\n".join(lines_of(COMMANDS, raw(command), view="text"))


def test_packed_arrays_are_lists_and_what_json_lacks_has_a_name() -> None:
    line = json.loads(json_line(SAMPLES, raw(replace(sample(0, 0), logprobs=pack_f32([-0.5, float("nan")])))))
    assert line["record"]["completion_tokens"] == [3, 4]
    assert line["record"]["loss_mask"] == [1, 1]
    assert line["record"]["logprobs"] == [-0.5, "nan"]


def test_a_completion_cannot_command_the_terminal() -> None:
    evil = replace(sample(0, 0), completion_text="\x1b[2Jgone\nnext\r")
    for view in VIEWS[:3]:
        text = "\n".join(lines_of(SAMPLES, raw(evil), view=view))
        assert "\x1b" not in text
        assert "\\x1b[2Jgone" in text


def test_what_is_no_record_is_shown_with_its_bytes() -> None:
    bad = RawRecord(topic="", partition=0, offset=3, key=None, value=b"\x00bad", headers=(("fp", b"x"),), unix_ms=0)
    text = "\n".join(lines_of(SAMPLES, bad, view="text"))
    assert "NOT A RECORD" in text
    assert b"\x00bad".hex() in text
    line = json.loads(json_line(SAMPLES, bad))
    assert (line["type"], line["value_hex"]) == (None, b"\x00bad".hex())


def test_a_tombstone_is_named_by_its_key() -> None:
    gone = RawRecord(topic="", partition=0, offset=3, key=b"1.4", value=None, headers=(), unix_ms=0)
    assert next(lines_of(WEIGHTS, gone, view="text")).endswith("tombstone of 1.4")
    assert json.loads(json_line(WEIGHTS, gone))["type"] == "Tombstone"
    assert "NOT A RECORD" in next(lines_of(SAMPLES, gone, view="text"))
