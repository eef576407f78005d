"""What is known of a run from its own records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.chaos.watch import Watch, pid_of
from schemas.records import StageEvent
from tests.unit.ops.chaos.chaos_support import enveloped
from tests.unit.ops.little_run import PARTITIONS, RUN, little_run, trained
from topics.catalog import LEDGER
from topics.memory import MemoryLog

EVENT = StageEvent(
    run=RUN, stage="learner", instance="learner-host-7-abc", kind="notice", name="x", seq=0, monotonic_s=0.0, unix_ms=0
)


def watch() -> Watch:
    return Watch(lambda: MemoryLog(run=RUN, data_partitions=PARTITIONS), data_partitions=PARTITIONS)


@pytest.mark.parametrize(
    ("instance", "pid"),
    [("learner-vm-31804-326843", 31804), ("rollout-a-b-77-x", 77), ("learner", -1), ("chaos-host-none-x", -1)],
)
def test_the_process_behind_an_instance(instance: str, pid: int) -> None:
    assert pid_of(instance) == pid


def test_steps_are_counted_once_per_lineage_with_the_time_of_their_first_outcome() -> None:
    seen = watch()
    for now_s, outcome in (
        (1.0, trained(0, at="1.1", seq=1)),
        (2.0, trained(1, at="1.1", seq=1)),
        (3.0, trained(2, at="2.1", seq=2)),
    ):
        seen.add(enveloped(outcome, partition=outcome.group % PARTITIONS), now_s=now_s)
    assert seen.step_times() == [1.0, 3.0]
    assert (seen.num_steps(since_s=2.0), seen.last_step) == (1, 1)


def test_groups_are_closed_in_the_surviving_history_only() -> None:
    seen = watch()
    for topic, partition, _, record in little_run():
        if topic is LEDGER:
            seen.add(enveloped(record, partition=partition), now_s=0.0)
    assert [seen.is_closed(group) for group in range(7)] == [True] * 6 + [False]


def test_phases_and_turns_of_a_process_are_known_by_its_pid() -> None:
    seen = watch()
    seen.add(enveloped(replace(EVENT, kind="phase_began", name="starting")), now_s=1.0)
    assert not seen.seen(7).is_past_start
    beat = replace(EVENT, kind="heartbeat", name="heartbeat", gauges={"turn_age_s": 4.0}, details={"phase": "training"})
    seen.add(enveloped(beat), now_s=2.0)
    assert (seen.seen(7).phase, seen.seen(7).turn_age_s, seen.seen(7).heard_s) == ("training", 4.0, 2.0)
    assert seen.seen(7).is_past_start
    assert (seen.seen(8).phase, seen.seen(None).stage) == ("", "")


def test_losses_that_stages_tell_of_are_kept_and_other_notices_counted() -> None:
    seen = watch()
    told = replace(EVENT, name="offsets_lost", details={"topic": "samples"}, gauges={"num_lost": 3.0})
    for event in (told, EVENT, EVENT):
        seen.add(enveloped(event), now_s=0.0)
    (loss,) = seen.announced()
    assert (loss.stage, loss.details["topic"], loss.num_lost) == ("learner", "samples", 3)
    assert seen.notices() == {"offsets_lost": 1, "x": 2}
