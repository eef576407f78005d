"""The index of outcomes: what survives is counted and listed, newest first, before the whole ledger is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from ops.dashboard.ledger_index import LedgerIndex
from ops.dashboard.ledger_rows import ApartRow, LostRow
from schemas.packed import pack_f16
from schemas.records import Outcome
from tests.unit.ops.dashboard.record_source import RecordSource, source_of
from tests.unit.ops.little_run import RUN, little_run, trained
from topics.catalog import LEDGER, Topic
from topics.kafka.raw import RawRecord


def filled(source: RecordSource, *, slice_offsets: int = 500) -> LedgerIndex:
    index = LedgerIndex(source)
    while index.turn(slice_offsets=slice_offsets):
        continue
    return index


@pytest.mark.parametrize("slice_offsets", [1, 2, 500])
def test_drops_are_those_of_the_surviving_history_whatever_the_slices(slice_offsets: int) -> None:
    index = filled(source_of(little_run()), slice_offsets=slice_offsets)
    # Group 3 was dropped by 1.2 as well, which is void.
    assert index.drops() == {"never_arrived": 2, "engine_failed": 1, "group_dropped": 1}
    assert index.share_read == 1.0
    assert index.outcomes(result="trained", skip=0, limit=10).num_all == 4
    assert [(row.group, row.is_void) for row in index.of_group(3)] == [(3, True), (3, False)]


def test_a_page_of_one_reason_leads_to_group_and_member() -> None:
    index = filled(source_of(little_run()))
    page = index.lost(reason="engine_failed", skip=0, limit=10)
    [row] = page.rows
    assert isinstance(row, LostRow)
    assert (row.group, row.member, row.reason, row.lineage, row.step) == (3, 0, "engine_failed", 2, 2)
    assert page.num_all == 1


def test_pages_follow_each_other_newest_first() -> None:
    index = filled(source_of(little_run()))
    every = [row.at_ms for row in index.lost(reason=None, skip=0, limit=10).rows]
    assert every == sorted(every, reverse=True)
    assert len(every) == 4
    pages = [index.lost(reason=None, skip=skip, limit=2).rows for skip in (0, 2, 4)]
    assert [row.at_ms for page in pages for row in page] == every


def test_the_newest_part_is_there_first_and_the_share_says_so() -> None:
    source = RecordSource(RUN, data_partitions=1)
    for group in range(100):
        source.put(LEDGER, trained(group, at="1.1", seq=group), partition=0)
    index = LedgerIndex(source)
    assert index.share_read == 0.0
    assert index.turn(slice_offsets=10)
    assert index.share_read == pytest.approx(0.1)
    assert [row.group for row in index.outcomes(result=None, skip=0, limit=3).rows] == [99, 98, 97]
    source.put(LEDGER, trained(100, at="1.1", seq=100), partition=0)
    index.turn(slice_offsets=10)
    assert index.outcomes(result=None, skip=0, limit=1).rows[0].group == 100


def test_how_much_is_read_may_be_asked_while_it_is_read() -> None:
    source = source_of(little_run())
    index = LedgerIndex(source)
    shares = []
    reading = source.read

    def asking(topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        shares.append(index.share_read)
        return reading(topic, ranges)

    source.read = asking  # type: ignore[method-assign]
    while index.turn(slice_offsets=2):
        continue
    assert shares[0] == 0.0
    assert shares == sorted(shares)


def test_memory_is_bounded_and_the_index_says_that_older_outcomes_are_left_out() -> None:
    source = RecordSource(RUN, data_partitions=1)
    for group in range(50):
        source.put(LEDGER, trained(group, at="1.1", seq=group), partition=0)
    index = LedgerIndex(source, max_outcomes=20)
    while index.turn(slice_offsets=5):
        continue
    assert index.is_full
    page = index.outcomes(result=None, skip=0, limit=100)
    assert page.num_all == 20
    assert {row.group for row in page.rows} == set(range(30, 50))


def with_gap(outcome: Outcome, gap: bytes) -> Outcome:
    return replace(outcome, members=(replace(outcome.members[0], logprob_gap=gap), *outcome.members[1:]))


def test_samples_with_a_gap_are_listed_furthest_apart_first_as_far_as_they_survive() -> None:
    run = little_run()
    for group, step, gap in ((0, "1.1", [0.5, -0.5]), (2, "1.2", [9.0, 9.0]), (2, "2.2", [-3.0, math.nan])):
        lineage = int(step[0])
        run.change(
            Outcome,
            lambda each, group=group, lineage=lineage: (each.group, each.lineage) == (group, lineage),  # type: ignore[misc]
            lambda each, gap=gap: with_gap(each, pack_f16(gap)),  # type: ignore[misc]
        )
    run.change(Outcome, lambda each: each.group == 1, lambda each: with_gap(each, b"no number"))
    page = filled(source_of(run)).apart(skip=0, limit=10)
    assert page.num_all == 2
    rows = [row for row in page.rows if isinstance(row, ApartRow)]
    assert [(row.group, row.member, row.mean, row.most) for row in rows] == [(2, 0, 3.0, 3.0), (0, 0, 0.5, 0.5)]
    assert filled(source_of(run)).apart(skip=1, limit=10).rows == (rows[1],)
