"""A learner of several ranks, as threads over the in-memory log: one history, whoever holds the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from consumers.learner.intake import Intake
from consumers.learner.ranks.lead import UNAGREED
from pipeline.engines.tiny import TinyShape, make_tiny_model
from schemas.errors import LogError, RankLost
from schemas.records import LedgerSealed, LineageStarted, MemberOutcome, Outcome, StageEvent, Version
from tests.integration.learner_crew import crew, run_to_end
from tests.integration.learner_world import SIZE, World, alive, step_of, turn_until
from tests.unit.consumers.learner.material import prompt, reward, sample
from topics.catalog import EVENTS, LEDGER, PROMPTS, REWARDS, SAMPLES
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.memory import MemoryLog

BORN = Version(lineage=1, step=0)
P = 4  # partitions of the in-memory log


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path, model: Path) -> World:
    return World(cast("KafkaLog", memory_log), tmp_path, model, max_steps=4, every_steps=2)


def check_ledger(world: World, *, num_groups: int) -> list[Outcome]:
    """One surviving outcome per group, on its own partition, numbers without gaps."""
    view, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(num_groups))
    assert view.sealed is not None
    assert view.sealed.num_groups == num_groups
    seqs: dict[int, list[int]] = {}
    for partition, record in world.records(LEDGER):
        assert isinstance(record, Outcome | LineageStarted | LedgerSealed)
        seqs.setdefault(partition, []).append(record.seq)
        if isinstance(record, Outcome):
            assert record.group % P == partition
    assert all(found == list(range(len(found))) for found in seqs.values())
    return outcomes


def fates(outcomes: Iterable[Outcome]) -> dict[int, tuple[int, str, list[MemberOutcome]]]:
    """Step, result and members of each group, without the gaps of log-probabilities."""
    return {
        each.group: (each.step, each.result, [replace(member, logprob_gap=None) for member in each.members])
        for each in outcomes
    }


def final_weights(world: World) -> torch.Tensor:
    model = world.newest().model
    return torch.cat([model[name].flatten() for name in sorted(model)])


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_run_of_several_ranks_is_the_run_of_one(world: World, tmp_path: Path, model: Path, ranks: int) -> None:
    """Same records, same batches, same outcomes, and the same weights but for rounding."""
    other = World(
        cast("KafkaLog", MemoryLog(run="other", data_partitions=P)), tmp_path, model, max_steps=4, every_steps=2
    )
    for each in (world, other):
        for number in range(16):
            each.group(number, born=BORN)
    run_to_end(other, 1, num_groups=16)
    run_to_end(world, ranks, num_groups=16)
    outcomes, wanted = (check_ledger(each, num_groups=16) for each in (world, other))
    assert fates(outcomes) == fates(wanted)
    for found in (outcomes, wanted):  # which ones of many that are as far apart is rounding
        kept = Counter(each.step for each in found for member in each.members if member.logprob_gap is not None)
        assert kept == dict.fromkeys(range(1, 5), 1)
    assert torch.allclose(final_weights(world), final_weights(other), rtol=0, atol=1e-6)
    assert [each.version.step for each in world.manifests()] == [0, 1, 2, 3, 4]
    mine, theirs = world.newest().state, other.newest().state
    assert (mine.positions, mine.closed) == (theirs.positions, theirs.closed)
    assert (mine.ranks, theirs.ranks) == (ranks, 1)


def test_all_groups_on_one_ranks_partitions_do_not_stall_the_others(world: World) -> None:
    """Rank 1 of 2 reads the odd partitions, and every group has an odd number."""
    world.max_steps = 5
    for number in range(1, 40, 2):
        world.group(number, born=BORN)
    with crew(world, 2) as made:
        turn_until(
            made.stage, lambda: step_of(made.context) >= 5, what="step 5", each=alive(world, num_groups=20, lineage=1)
        )
        turn_until(made.stage, lambda: made.stage.finished, what="the end", each=alive(world, num_groups=20, lineage=1))
        made.stop()
    view, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(1, 40, 2))
    assert {each.result for each in outcomes} == {"trained"}
    assert view.step == 5


def test_groups_of_every_rank_that_never_complete_are_dropped_by_their_deadline(world: World) -> None:
    world.max_steps = 100
    lacking = {2, 3, 8, 9}
    for number in range(20):
        world.group(number, missing=int(number in lacking), born=BORN)
    run_to_end(world, 2, num_groups=20)
    outcomes = check_ledger(world, num_groups=20)
    assert {each.group for each in outcomes if each.reason == "incomplete: 7/8"} == lacking
    assert Counter(each.result for each in outcomes) == {"trained": 16, "dropped": 4}


def test_another_number_of_ranks_goes_on_where_the_last_one_stopped(world: World) -> None:
    """2, then 1, then 4 ranks: every group is trained once."""
    world.max_steps, total = 100, 48
    for number in range(total):
        world.group(number, born=BORN)
    with crew(world, 2) as made:
        turn_until(made.stage, lambda: step_of(made.context) >= 3, what="step 3")
        made.stop()
    assert (world.newest().state.lineage, world.newest().state.step) == (1, 3)
    with crew(world, 1) as made:
        turn_until(made.stage, lambda: step_of(made.context) >= 6, what="step 6")
        made.stop()
    assert (world.newest().state.lineage, world.newest().state.step) == (2, 6)
    run_to_end(world, 4, num_groups=total, lineage=3)
    outcomes = check_ledger(world, num_groups=total)
    assert {each.result for each in outcomes} == {"trained"}
    assert Counter(each.lineage for each in outcomes) == {1: 12, 2: 12, 3: 24}


def test_a_topic_that_one_rank_has_not_seen_to_be_new_is_read_from_its_beginning_at_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions there are of the old topic; as if of the new one they would pass over records of that."""
    world.max_steps, now = 100, cast("property", Intake.topic_ids).fget
    assert now is not None

    def half_seen(intake: Intake) -> dict[str, str]:
        """Rank 1 reads partitions 1 and 3."""
        old = {"samples": "the old one"} if ("samples", 1) in intake.positions() else {}
        return {**now(intake), **old}

    for number in range(16):
        world.group(number, born=BORN)
    with crew(world, 2) as made:
        monkeypatch.setattr(Intake, "topic_ids", property(half_seen))
        turn_until(made.stage, lambda: step_of(made.context) >= 2, what="step 2")
        made.stop()
    monkeypatch.undo()
    ids, now_ids = world.newest().state.topic_ids, world.log.admin().topic_ids()
    assert ids == {"prompts": now_ids["prompts"], "samples": UNAGREED, "rewards": now_ids["rewards"]}
    run_to_end(world, 2, num_groups=16, lineage=2)
    assert {each.result for each in check_ledger(world, num_groups=16)} == {"trained"}
    notices = [
        each for _, each in world.records(EVENTS) if isinstance(each, StageEvent) and each.name == "topic_recreated"
    ]
    assert [each.details["topic"] for each in notices] == ["samples"]


def test_a_restart_with_other_ranks_after_a_crash_trains_the_void_steps_again(world: World) -> None:
    world.every_steps = 2
    for number in range(16):
        world.group(number, born=BORN)
    with crew(world, 2) as made:
        turn_until(made.stage, lambda: step_of(made.context) >= 3, what="step 3")
        made.followers[0][1].stop.request("the test")  # it follows on, so that the pool can end
        left, made.stage._is_sound = made.stage, False  # nothing is saved
        left.stop(deadline=Deadline.after(10))
        with pytest.raises(RankLost, match="rank 0 ended with an error"):
            made.futures[0].result(timeout=20)
    run_to_end(world, 3, num_groups=16, lineage=2)
    outcomes = check_ledger(world, num_groups=16)
    assert world.ledger()[0].lineages.limits[1] == 2
    assert Counter(each.lineage for each in outcomes) == {1: 8, 2: 8}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_of_any_rank_is_a_stop_in_order_of_all(world: World, rank: int) -> None:
    world.max_steps, world.every_steps = 100, 100
    for number in range(8):
        world.group(number, born=BORN)
    with crew(world, 3) as made:
        turn_until(made.stage, lambda: step_of(made.context) >= 2, what="step 2")
        (made.context if rank == 0 else made.followers[rank - 1][1]).stop.request("SIGTERM")
        turn_until(made.stage, lambda: made.context.stop.requested, what="rank 0 to hear of it")
        made.stop()
    assert all(stage.finished for stage, _ in made.followers)
    assert (world.newest().state.step, len(world.ledger()[1])) == (2, 8)


def test_an_error_of_rank_0_ends_the_others_with_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LogError("of the test")

    with crew(world, 2) as made:
        turn_until(made.stage, lambda: bool(world.manifests()), what="the first version")
        monkeypatch.setattr("consumers.learner.upstream.UpstreamWatch.poll", fail)
        with pytest.raises(LogError, match="of the test"):
            turn_until(made.stage, lambda: False, what="the failure")
        made.stage.stop(deadline=Deadline.after(10))
        with pytest.raises(RankLost, match="learner rank 0 ended with an error"):
            made.futures[0].result(timeout=20)


def test_records_on_another_partition_than_their_groups_are_left_out_and_told(world: World) -> None:
    """Else two ranks would answer for one group, and it would have two outcomes."""
    for number in range(4):
        world.group(number, born=BORN)
    for topic, record in ((PROMPTS, prompt(0, size=SIZE)), (SAMPLES, sample(0, 0, born=BORN)), (REWARDS, reward(0, 0))):
        world.misplace(topic, record, partition=1)
    world.max_steps = 1
    made = run_to_end(world, 2, num_groups=4)
    check_ledger(world, num_groups=4)
    told = made.followers[0][1].metrics.snapshot()
    assert sum(number for name, number in told.items() if name.startswith("orphans")) == 3


def test_what_others_closed_is_closed_everywhere_so_that_the_set_stays_small(world: World) -> None:
    for number in range(16):
        world.group(number, born=BORN)
    made = run_to_end(world, 2, num_groups=16)
    stage, _ = made.followers[0]
    work = stage._work
    assert work is not None
    assert work._part._assembler.closed.watermark >= 12, "all but what the last step closed"


def test_counts_of_rank_0_are_those_of_all_ranks(world: World) -> None:
    world.max_steps = 1
    for number in range(3):
        world.group(number, born=BORN)
    with crew(world, 2) as made:
        data = made.stage._loop._parts.data  # type: ignore[union-attr]
        turn_until(made.stage, lambda: data.num_completed == 3, what="three groups")
        gauges = made.context.metrics.snapshot()
        assert (gauges["ready_groups"], gauges["open_groups"]) == (3, 3)
        assert (gauges["rank_ready_groups"], made.followers[0][1].metrics.snapshot()["rank_ready_groups"]) == (2, 1)
        assert data.num_seen == 3
        made.stop()
