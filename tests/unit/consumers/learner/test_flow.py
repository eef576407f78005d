"""The way of samples through a rank, in figures, against clocks that the test sets."""

from __future__ import annotations

import pytest

from consumers.learner.batch import Batch, TrainGroup, TrainMember
from consumers.learner.flow import BatchFlow
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from tests.unit.consumers.learner.material import sample, version
from topics.clock import ManualClock
from topics.memory import MemoryLog


def batch_of(*ages: int, scored_unix_ms: int) -> Batch:
    members = tuple(
        TrainMember(
            sample=sample(0, number, born=version(5 - age)),
            reward=1.0,
            rewards=(),
            version=version(5 - age),
            age=age,
            scored_unix_ms=scored_unix_ms,
        )
        for number, age in enumerate(ages)
    )
    return Batch(step=6, groups=(TrainGroup(group=0, attempt="a", members=members, age=max(ages)),))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_hops_ages_and_lengths(memory_log: MemoryLog, clock: ManualClock) -> None:
    run = RunSettings(name=memory_log.run, partitions=memory_log.data_partitions)
    context = make_context(memory_log, run=run, stage="learner", clock=clock)
    flow = BatchFlow(context)
    now_ms = clock.unix_ms()
    batch = batch_of(0, 2, scored_unix_ms=now_ms)
    clock.advance(0.25)
    flow.cut(batch)
    clock.advance(0.5)
    flow.trained(batch)
    told = context.metrics.snapshot()
    assert told["sample_hop_ms_sum{hop=scored_cut}"] == 2 * 250
    assert told["sample_hop_ms_sum{hop=cut_trained}"] == pytest.approx(2 * 500)
    assert told["sample_hop_ms_sum{hop=made_trained}"] == 2 * clock.unix_ms()  # they were made at time 0
    assert (told["age_mean_versions{kind=at_cut}"], told["age_max_versions{kind=at_cut}"]) == (1.0, 2.0)
    assert told["age_at_cut_versions_count"] == 2
    assert (told["trained_length_tokens_count"], told["trained_length_tokens_sum"]) == (2, 4)


def test_a_reward_from_a_clock_that_is_ahead_is_a_skew(memory_log: MemoryLog, clock: ManualClock) -> None:
    run = RunSettings(name=memory_log.run, partitions=memory_log.data_partitions)
    context = make_context(memory_log, run=run, stage="learner", clock=clock)
    BatchFlow(context).cut(batch_of(0, scored_unix_ms=clock.unix_ms() + 5000))
    told = context.metrics.snapshot()
    assert told["sample_hop_ms_sum{hop=scored_cut}"] == 0.0
    assert told["clock_skews"] == 1.0
