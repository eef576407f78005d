"""The records of a group are found without reading what does not lie around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.dashboard.finding import BlockIndex, Finder
from ops.dashboard.ledger_index import LedgerIndex
from tests.unit.ops.dashboard.record_source import RecordSource, source_of
from tests.unit.ops.little_run import RUN, little_run, prompt, reward, sample, trained
from topics.catalog import LEDGER, PROMPTS, REWARDS, SAMPLES, SHADOW_REWARDS

NUM_GROUPS = 4_000


@pytest.fixture(scope="module")
def long_run() -> RecordSource:
    """Groups on two partitions, one after the other; a step takes 20 s."""
    source = RecordSource(RUN, data_partitions=2, gap=7)
    for group in range(NUM_GROUPS):
        partition, late_ms = group % 2, 20_000 if group % 16 == 0 else 1
        source.put(PROMPTS, prompt(group), partition=partition, after_ms=late_ms)
        for member in (0, 1):
            source.put(SAMPLES, sample(group, member), partition=partition)
            source.put(REWARDS, reward(group, member), partition=partition)
        source.put(LEDGER, trained(group, at="1.1", seq=group), partition=partition)
    return source


@pytest.mark.parametrize("group", [0, 1, 77, 2048, NUM_GROUPS - 1])
def test_a_group_is_found_with_all_its_records_by_reading_few(long_run: RecordSource, group: int) -> None:
    index = LedgerIndex(long_run)
    while index.turn(slice_offsets=10_000):
        continue
    ledger = [(row.offset, row.at_ms) for row in index.of_group(group)]
    before = long_run.num_read
    found = Finder(long_run).find(group, ledger=ledger)
    assert found.prompt is not None
    assert sorted(each.topic for each in found.records) == ["ledger", "rewards", "rewards", "samples", "samples"]
    assert found.notes == []
    assert long_run.num_read - before < 500


def test_a_group_that_is_not_there_is_not_found(long_run: RecordSource) -> None:
    found = Finder(long_run).find(NUM_GROUPS + 10, ledger=[])
    assert found.prompt is None


def test_an_open_group_shows_what_there_is_of_it() -> None:
    source = source_of(little_run())
    source.put(PROMPTS, prompt(6), partition=0)
    source.put(SAMPLES, sample(6, 0), partition=0)
    found = Finder(source).find(6, ledger=[])
    assert found.prompt is not None
    assert [each.topic for each in found.records] == ["samples"]


def test_shadow_rewards_given_long_after_are_found(long_run: RecordSource) -> None:
    for group in range(1_000):
        late = replace(reward(group, 0), name="later", weight=0.0)
        long_run.put(SHADOW_REWARDS, late, partition=group % 2)
    found = Finder(long_run).find(501, ledger=[])
    assert [each.topic for each in found.records if each.topic == "shadow-rewards"] == ["shadow-rewards"]


def test_an_index_of_blocks_reads_on_where_it_stood() -> None:
    source = RecordSource(RUN, data_partitions=1)
    for group in range(600):
        source.put(SHADOW_REWARDS, reward(group, 0), partition=0)
    index = BlockIndex(source, SHADOW_REWARDS)
    assert index.places(300, notes=[]) == [(256, 512)]
    before = source.num_read
    source.put(SHADOW_REWARDS, reward(600, 0), partition=0)
    assert index.places(600, notes=[]) == [(512, 768)]
    assert source.num_read - before == 1
