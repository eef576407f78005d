"""How groups end: deadlines, orphans, what is open at the end (Case 28), and positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from consumers.learner.assembler_settings import AssemblerSettings
from pipeline.settings import RunSettings
from schemas.reasons import Reason
from schemas.records import Reward, Sample
from tests.unit.consumers.learner.material import (
    G,
    Topics,
    assembler,
    fates,
    feed,
    let_pass,
    prompt,
    record_counts,
    results,
    reward,
    sample,
    train_all,
    version,
    whole,
)
from topics.clock import ManualClock


def test_case_28_three_stuck_groups_do_not_stop_the_others_and_late_members_are_not_trained() -> None:
    """Case 28."""
    clock, topics = ManualClock(), Topics()
    target = assembler(clock=clock, eta=100)
    stuck = {2, 9, 13}
    for group in range(20):
        records = whole(group)
        feed(target, records[:-2] if group in stuck else records, topics=topics)
    ids, step = train_all(target, 0, num_groups=4)
    assert step == 5, "17 groups: four full steps and a smaller one"
    assert target.num_open == 3
    let_pass(target, clock, 50)
    assert (target.num_open, target.oldest_open_s) == (3, 50)
    let_pass(target, clock, 51)
    drafts = target.take_outcomes()
    assert fates(drafts) == dict.fromkeys(stuck, "dropped(incomplete: 7/8)")
    assert results(drafts) == {"dropped(group_dropped)": 21, "dropped(never_arrived)": 3}
    for group in stuck:
        feed(target, whole(group)[-2:], topics=topics)
    assert target.cut(step, 1, allow_smaller=True) is None
    assert record_counts(target) == {("late_records", "samples"): 3, ("late_records", "rewards"): 3}
    assert len(ids) == 17 * G
    assert target.closed.watermark == 20


def test_a_deadline_stands_still_while_no_engine_is_ready() -> None:
    clock = ManualClock()
    target = assembler(clock=clock)
    feed(target, [prompt(0)])
    let_pass(target, clock, 1000, engine_ready=False)
    assert target.take_outcomes() == []
    let_pass(target, clock, 99)
    assert not target.has_expired
    let_pass(target, clock, 1)
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: "dropped(incomplete: 0/8)"}
    assert results(drafts) == {"dropped(never_arrived)": 8}


def test_a_part_group_is_trained_at_its_deadline_when_that_is_allowed() -> None:
    clock = ManualClock()
    target = assembler(clock=clock, min_group_members=6)
    records = whole(0)
    feed(target, [record for record in records if not (isinstance(record, Sample) and record.member == 7)][:-1])
    assert target.num_ready == 0
    let_pass(target, clock, 100)
    batch = target.cut(0, 1)
    assert batch is not None
    assert [m.sample.member for m in batch.groups[0].members] == list(range(7))
    feed(target, [sample(0, 7)])
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == {"trained": 7, "dropped(never_arrived)": 1}


def test_samples_without_a_reward_are_not_scored_at_the_deadline() -> None:
    clock = ManualClock()
    target = assembler(clock=clock)
    records = [record for record in whole(0) if not (isinstance(record, Reward) and record.member < 2)]
    feed(target, records)
    assert target.waiting().num_unscored == {"match": 2}
    assert target.waiting().num_unsampled == 0
    let_pass(target, clock, 100)
    assert results(target.take_outcomes()) == {"dropped(not_scored)": 2, "dropped(group_dropped)": 6}


def test_records_before_their_prompt_are_held_and_joined() -> None:
    target = assembler()
    records = whole(0)
    feed(target, records[1:])
    assert (target.num_unclosed, target.num_orphans, target.buffered_bytes) == (0, 1, 1600)
    assert target.positions({("samples", 0): 8, ("rewards", 0): 8}) == {("samples", 0): 0, ("rewards", 0): 0}
    feed(target, records[:1])
    assert (target.num_orphans, target.num_ready, target.buffered_bytes) == (0, 1, 1700)


def test_orphans_are_given_up_after_the_deadline_with_a_notice() -> None:
    clock = ManualClock()
    target = assembler(clock=clock)
    feed(target, whole(0)[1:])
    let_pass(target, clock, 100)
    assert (target.num_orphans, target.buffered_bytes) == (0, 0)
    (notice,) = target.tally.take_notices()
    assert (notice.name, notice.gauges["num_records"]) == ("orphans_given_up", 16)
    assert record_counts(target) == {("orphans", "samples"): 8, ("orphans", "rewards"): 8}
    assert target.positions({("samples", 0): 8}) == {("samples", 0): 8}


def test_a_member_outside_its_group_has_an_outcome_of_its_own() -> None:
    target = assembler()
    feed(target, [prompt(0, size=2), sample(0, 2), sample(0, 2), sample(0, -1)])
    for member in range(2):
        feed(target, [sample(0, member), reward(0, member)])
    batch = target.cut(0, 1)
    assert batch is not None
    target.mark_trained(batch)
    (draft,) = target.take_outcomes()
    assert [m.member for m in draft.members] == [0, 1, -1, 2]
    assert results([draft]) == {"trained": 2, "dropped(bad_group_size)": 2}


def test_positions_and_closed_set_move_together_when_outcomes_are_taken() -> None:
    target, topics = assembler(), Topics()
    feed(target, whole(0), topics=topics)
    feed(target, whole(4), topics=topics)
    read = {("prompts", 0): 2, ("samples", 0): 16, ("rewards", 0): 16}
    batch = target.cut(0, 1)
    assert batch is not None
    target.mark_trained(batch)
    assert target.positions(read) == {("prompts", 0): 0, ("samples", 0): 0, ("rewards", 0): 0}
    assert len(target.closed) == 0
    target.take_outcomes()
    assert target.positions(read) == {("prompts", 0): 1, ("samples", 0): 8, ("rewards", 0): 8}
    assert len(target.closed) == 1


def test_an_unmarked_batch_stays_open_and_a_foreign_one_is_refused() -> None:
    target = assembler()
    feed(target, whole(0))
    batch = target.cut(0, 1)
    assert batch is not None
    assert target.cut(0, 1) is None
    assert target.num_unclosed == 1
    target.mark_trained(batch)
    with pytest.raises(ValueError, match=r"groups \[0\] are in no batch"):
        target.mark_trained(batch)


def test_what_is_open_at_the_end_is_closed_with_that_reason() -> None:
    target = assembler()
    feed(target, [*whole(0), prompt(1, size=2), sample(1, 0), *whole(2, born=version(9))])
    target.close_open(Reason.RUN_ENDED)
    drafts = target.take_outcomes()
    assert fates(drafts) == dict.fromkeys(range(3), "dropped(run_ended)")
    assert results(drafts) == {
        "dropped(run_ended)": 16,
        "dropped(not_scored)": 1,
        "dropped(never_arrived)": 1,
    }
    assert (target.num_unclosed, target.num_ready) == (0, 0)


def test_what_is_open_of_an_earlier_phase_is_dropped_whatever_is_there_of_it() -> None:
    target = assembler(first_group=2)
    feed(target, [*whole(0), sample(1, 0), prompt(1, size=2), *whole(2)])
    drafts = target.take_outcomes()
    assert fates(drafts) == dict.fromkeys(range(2), "dropped(run_ended)")
    assert (target.num_unclosed, target.num_ready) == (1, 1)
    batch = target.cut(0, 1)
    assert batch is not None
    assert [group.group for group in batch.groups] == [2]
    target.mark_trained(batch)
    target.take_outcomes()
    assert (target.buffered_bytes, target.closed.watermark) == (0, 3)


def test_tokens_the_model_does_not_have_are_dropped_before_they_break_a_step() -> None:
    target = assembler(vocab_size=2, min_group_members=1)
    feed(target, [prompt(0, size=2), sample(0, 0), reward(0, 0), reward(0, 1)])
    feed(target, [sample(0, 1, born=(version(0), version(0)))])  # token ids up to 3
    batch = target.cut(0, 1)
    assert batch is not None
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == {"trained": 1, "dropped(out_of_vocabulary)": 1}


def test_a_sample_longer_than_the_context_is_dropped_before_it_breaks_a_step() -> None:
    target = assembler(context_tokens=4, min_group_members=1)
    feed(target, [prompt(0, size=2), sample(0, 0), reward(0, 0), reward(0, 1)])
    feed(target, [sample(0, 1, born=(version(0), version(0)))])  # 1 + 4 tokens
    batch = target.cut(0, 1)
    assert batch is not None
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == {"trained": 1, "dropped(too_large)": 1}


@pytest.mark.parametrize(
    ("unverified", "fate"), [("train", {"trained": 2}), ("drop", {"trained": 1, "dropped(unverified)": 1})]
)
def test_samples_of_weights_that_could_not_be_checked(
    unverified: Literal["train", "drop"], fate: dict[str, int]
) -> None:
    """One stretch of such tokens is enough."""
    target = assembler(unverified=unverified, min_group_members=1)
    doubtful = sample(0, 1, born=(version(0), version(0)))
    runs = (doubtful.version_runs[0], replace(doubtful.version_runs[1], verified=False))
    feed(target, [prompt(0, size=2), sample(0, 0), replace(doubtful, version_runs=runs), reward(0, 0), reward(0, 1)])
    batch = target.cut(0, 1)
    assert batch is not None
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == fate
    assert target.tally.take_counts().get(("members_dropped", "unverified"), 0) == fate.get("dropped(unverified)", 0)


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 3e12])
def test_a_reward_that_a_step_cannot_be_computed_with_is_dropped(value: float) -> None:
    target = assembler(weights={"match": -0.5}, min_group_members=1)
    feed(target, [prompt(0, size=2), sample(0, 0), sample(0, 1), reward(0, 0, value=value), reward(0, 1)])
    batch = target.cut(0, 1)
    assert batch is not None
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == {"trained": 1, "dropped(non_finite_reward: match)": 1}


def test_outcomes_are_counted_by_result_and_reason() -> None:
    target = assembler()
    feed(target, [prompt(0, size=2), sample(0, 0, failure="aborted: swap"), sample(0, 1, failure="strange words")])
    assert target.tally.take_counts() == {
        ("groups_closed", "dropped"): 1,
        ("members_dropped", "aborted"): 1,
        ("members_dropped", "other"): 1,
    }


def test_settings_come_from_the_run_without_shadow_rewards() -> None:
    run = RunSettings(name="r", max_staleness=3, on_stale="wait", min_group_members=2, group_deadline_s=7)
    made = AssemblerSettings.of_run(
        run, rewards={"a": 1.0, "shadow": 0.0}, buffer_bytes=5, vocab_size=9, unverified="drop"
    )
    assert list(made.rewards.weights) == ["a"]
    assert (made.staleness.max_age, made.staleness.on_stale) == (3, "wait")
    assert (made.min_group_members, made.deadline_s, made.buffer_bytes, made.vocab_size) == (2, 7, 5, 9)
    assert made.unverified == "drop"
