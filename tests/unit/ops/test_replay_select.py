"""Selections: how they are written, what they match, and what they refuse."""

from __future__ import annotations

import pytest

from ops.replay import select
from ops.replay.select import SampleRef, Selection, SelectionError
from schemas.codec import encode, headers_of, key_of
from schemas.records import Record, Version
from tests.unit.ops.little_run import RUN, reward, sample, trained
from topics.catalog import LEDGER, REWARDS, SAMPLES, SHADOW_REWARDS, WEIGHTS, Topic
from topics.kafka.raw import RawRecord


def raw(record: Record, *, with_headers: bool = True, unix_ms: int = 1000) -> RawRecord:
    headers = tuple(headers_of(record)) if with_headers else ()
    return RawRecord(
        topic="", partition=0, offset=0, key=key_of(record), value=encode(record), headers=headers, unix_ms=unix_ms
    )


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("3..5", (3, 5)), ("3..", (3, None)), ("..5", (None, 5)), ("4", (4, 4)), ("..", (None, None))],
)
def test_offset_ranges(text: str, bounds: select.Bounds) -> None:
    assert select.parse_bounds(text) == bounds


def test_times_are_utc_or_unix_milliseconds() -> None:
    assert select.parse_times("1970-01-01T00:00:01..2000") == (1000, 2000)
    assert select.parse_times("1970-01-01T01:00+01:00..") == (0, None)


def test_versions_and_samples() -> None:
    assert select.parse_versions("1.3") == (Version(lineage=1, step=3), Version(lineage=1, step=3))
    assert select.parse_versions("1.3..2.0") == (Version(lineage=1, step=3), Version(lineage=2, step=0))
    assert select.parse_sample("a-run/12/3") == SampleRef(run="a-run", group=12, member=3)
    assert select.parse_sample("12/3") == SampleRef(run=None, group=12, member=3)


@pytest.mark.parametrize(
    "parse",
    [
        lambda: select.parse_bounds("a..b"),
        lambda: select.parse_times("yesterday.."),
        lambda: select.parse_times("2026-01-01"),
        lambda: select.parse_versions("3"),
        lambda: select.parse_sample("12"),
        lambda: select.parse_sample("12/x"),
        lambda: select.parse_topics(("nothing",)),
        lambda: select.parse_place("samples/1"),
    ],
)
def test_other_forms_are_refused_with_the_wanted_one(parse: object) -> None:
    with pytest.raises(SelectionError) as refused:
        parse()  # type: ignore[operator]
    assert refused.value.hint


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize(
    ("topic", "record", "wanted"),
    [
        (SAMPLES, sample(4, 1), True),
        (SAMPLES, sample(4, 0), False),
        (SAMPLES, sample(2, 1), False),
        (REWARDS, reward(4, 1), True),
        (REWARDS, reward(4, 0), False),
        (LEDGER, trained(4, at="2.2", seq=0), True),
        (LEDGER, trained(2, at="2.2", seq=0), False),
    ],
)
def test_a_sample_id_matches_by_header_or_by_content(
    topic: Topic, record: Record, wanted: bool, with_headers: bool
) -> None:
    selection = Selection(sample=select.parse_sample(f"{RUN}/4/1"))
    assert selection.matches(topic, raw(record, with_headers=with_headers)) is wanted
    assert not Selection(sample=select.parse_sample("other/4/1")).matches(topic, raw(record))


@pytest.mark.parametrize("with_headers", [True, False])
def test_versions_match_by_header_or_by_content(with_headers: bool) -> None:
    record = raw(sample(0, 0, born="1.4"), with_headers=with_headers)
    assert Selection(versions=select.parse_versions("1.3..1.4")).matches(SAMPLES, record)
    assert not Selection(versions=select.parse_versions("1.5..2.0")).matches(SAMPLES, record)


def test_a_tombstone_has_the_version_of_its_key() -> None:
    tombstone = RawRecord(topic="", partition=0, offset=0, key=b"1.4", value=None, headers=(), unix_ms=0)
    assert Selection(versions=select.parse_versions("1.4")).matches(WEIGHTS, tombstone)


def test_bytes_that_are_no_record_match_by_key_and_no_more() -> None:
    bad = RawRecord(topic="", partition=0, offset=0, key=b"4", value=b"bad", headers=(), unix_ms=0)
    assert Selection(group=4).matches(SAMPLES, bad)
    assert Selection(sample=select.parse_sample("4/1")).matches(SAMPLES, bad)
    assert not Selection(group=5).matches(SAMPLES, bad)
    assert not Selection(versions=select.parse_versions("1.0")).matches(SAMPLES, bad)


@pytest.mark.parametrize(("bounds", "wanted"), [((None, 0.25), True), ((0.25, None), True), ((0.3, None), False)])
def test_a_reward_matches_by_its_value_and_a_failure_by_none(bounds: select.Values, wanted: bool) -> None:
    selection = Selection(values=bounds)
    assert selection.chosen_topics() == (REWARDS, SHADOW_REWARDS)
    assert selection.matches(REWARDS, raw(reward(4, 1, value=0.25))) is wanted
    assert not selection.matches(REWARDS, raw(reward(4, 1, value=None)))
    assert not selection.matches(SAMPLES, raw(sample(4, 1)))
