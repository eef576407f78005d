"""Join, dedup and completeness: Case 13, Case 25 and Case 27."""

from __future__ import annotations

import math
import random

import pytest

from pipeline.history import ClosedSet
from schemas.records import Record, RewardUse, Sample
from tests.unit.consumers.learner.material import (
    G,
    P,
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
    whole,
)
from topics.clock import ManualClock


def test_a_batch_is_sorted_and_its_outcome_names_every_member_once() -> None:
    target = assembler()
    records = whole(1) + whole(0)
    random.Random(1).shuffle(records)
    feed(target, records)
    batch = target.cut(0, 2)
    assert batch is not None
    assert batch.step == 1
    assert [group.group for group in batch.groups] == [0, 1]
    assert [[m.sample.member for m in group.members] for group in batch.groups] == [list(range(G))] * 2
    assert batch.sample_ids()[0] == "r/0/0"
    assert [member.reward for member in batch.groups[0].members] == [0.0, 1.0] * 4
    assert target.take_outcomes() == []
    target.mark_trained(batch)
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: "trained", 1: "trained"}
    assert [[m.member for m in draft.members] for draft in drafts] == [list(range(G))] * 2
    assert drafts[0].members[1].rewards == (RewardUse(name="match", value=1.0, weight=1.0),)
    assert target.take_outcomes() == []
    assert target.num_unclosed == 0
    assert target.buffered_bytes == 0


def test_rewards_are_weighted_and_unknown_ones_counted() -> None:
    target = assembler(weights={"b": 0.5, "a": 2.0})
    records: list[Record] = [prompt(0, size=1), reward(0, 0, name="b", value=4.0), sample(0, 0)]
    feed(target, [*records, reward(0, 0, name="c", value=9.0)])
    assert target.cut(0, 1) is None, "reward a is missing"
    feed(target, [reward(0, 0, name="a", value=1.0)])
    batch = target.cut(0, 1)
    assert batch is not None
    member = batch.groups[0].members[0]
    assert member.reward == 4.0
    assert [use.name for use in member.rewards] == ["a", "b"]
    assert record_counts(target) == {("unknown_rewards", "rewards"): 1}


def test_no_required_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one required reward"):
        assembler(weights={})


@pytest.mark.parametrize("where", ["same partition", "other partition", "same poll batch"])
def test_case_13_a_thousand_samples_fifty_of_them_twice(where: str) -> None:
    """Case 13."""
    topics, target = Topics(), assembler(eta=1000)
    records = [record for group in range(125) for record in whole(group)]
    doubled = random.Random(7).sample([record for record in records if isinstance(record, Sample)], 50)
    first = topics.extend(records)
    shift = 1 if where == "other partition" else 0
    again = [topics.append(copy, partition=(copy.group + shift) % P) for copy in doubled]
    ids: list[str] = []
    step = 0
    if where == "same poll batch":
        target.add_all([*first, *again])
    else:
        target.add_all(first)
        ids, step = train_all(target, 0, num_groups=10)
        target.add_all(again)
    more, _ = train_all(target, step, num_groups=10)
    ids += more
    assert len(ids) == len(set(ids)) == 1000
    assert sum(record_counts(target).values()) == 50


def test_case_13_after_a_restart_from_positions_and_closed_set() -> None:
    """Case 13."""
    topics, first = Topics(), assembler(eta=1000)
    envelopes = topics.extend(record for group in range(125) for record in whole(group))
    copies = [each for each in envelopes if isinstance(each.record, Sample)][:400:8]
    first.add_all(envelopes[:1500])
    batch = first.cut(0, 40)
    assert batch is not None
    first.mark_trained(batch)
    first.take_outcomes()
    read: dict[tuple[str, int], int] = {}
    for each in envelopes[:1500]:
        read[each.topic, each.partition] = each.offset + 1
    positions, closed = first.positions(read), ClosedSet.from_json(first.closed.to_json())
    for each in copies:
        assert each.record is not None
        topics.append(each.record)
    second = assembler(eta=1000, closed=closed, step=1)
    for place, log in topics.logs.items():
        second.add_all(log[positions.get(place, 0) :])
    ids, _ = train_all(second, 1, num_groups=10)
    ids += batch.sample_ids()
    assert len(ids) == len(set(ids)) == 1000
    assert len(second.closed) == second.closed.watermark == 125


def test_other_bytes_for_the_same_slot_and_attempt_are_a_conflict_and_the_first_wins() -> None:
    target = assembler()
    feed(target, [prompt(0, size=1), sample(0, 0, text="first"), sample(0, 0, text="second"), reward(0, 0)])
    (notice,) = target.tally.take_notices()
    assert (notice.name, notice.details["group"]) == ("id_conflict", "0")
    assert record_counts(target) == {("id_conflicts", "samples"): 1}
    feed(target, [sample(0, 0, text="second"), sample(0, 0, text="first")])
    assert record_counts(target) == {("id_conflicts", "samples"): 1, ("duplicates", "samples"): 1}
    batch = target.cut(0, 1)
    assert batch is not None
    assert batch.groups[0].members[0].sample.completion_text == "first"


def test_a_second_reward_of_the_same_name_changes_nothing() -> None:
    target = assembler()
    feed(target, [prompt(0, size=1), reward(0, 0, value=1.0), reward(0, 0, value=0.0), sample(0, 0)])
    batch = target.cut(0, 1)
    assert batch is not None
    assert batch.groups[0].members[0].reward == 1.0
    assert record_counts(target) == {("duplicates", "rewards"): 1}


def test_attempts_are_never_mixed_and_the_first_complete_one_wins() -> None:
    target = assembler()
    records: list[Record] = [prompt(0, size=2)]
    for attempt, member in (("x", 0), ("y", 1), ("y", 0)):
        records += [sample(0, member, attempt=attempt), reward(0, member, attempt=attempt)]
    feed(target, records)
    feed(target, [sample(0, 1, attempt="x"), reward(0, 1, attempt="x")])
    batch = target.cut(0, 1)
    assert batch is not None
    assert batch.groups[0].attempt == "y"
    assert {member.sample.attempt for member in batch.groups[0].members} == {"y"}
    assert record_counts(target) == {("duplicates", "samples"): 1, ("duplicates", "rewards"): 1}


def test_two_halves_of_two_attempts_are_no_group() -> None:
    clock = ManualClock()
    target = assembler(clock=clock)
    records: list[Record] = [prompt(0, size=2)]
    for attempt, member in (("x", 0), ("y", 1)):
        records += [sample(0, member, attempt=attempt), reward(0, member, attempt=attempt)]
    feed(target, records)
    assert target.cut(0, 1) is None
    let_pass(target, clock, 101)
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: "dropped(incomplete: 1/2)"}
    assert results(drafts) == {"dropped(group_dropped)": 1, "dropped(never_arrived)": 1}


def test_case_25_samples_with_bad_logprobs_are_dropped_with_their_reason() -> None:
    """Case 25."""
    target = assembler(min_group_members=3)
    bad: list[tuple[float, float] | None] = [
        (math.nan, -1.0),
        (-math.inf, -1.0),
        (math.inf, -1.0),
        (0.5, -1.0),
        None,
    ]
    records: list[Record] = [prompt(0)]
    records += [sample(0, member, logprobs=values) for member, values in enumerate(bad)]
    records += [sample(0, member) for member in range(5, 8)]
    records += [reward(0, member) for member in range(8)]
    feed(target, records)
    batch = target.cut(0, 1)
    assert batch is not None
    assert [m.sample.member for m in batch.groups[0].members] == [5, 6, 7]
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == {
        "trained": 3,
        "dropped(non_finite_logprob)": 4,
        "dropped(missing_logprobs)": 1,
    }


def test_failures_are_final_and_never_count_as_zero() -> None:
    target = assembler(min_group_members=1)
    feed(target, [prompt(0, size=4), sample(0, 0, failure="engine_failed: oom")])
    feed(target, [sample(0, 1), reward(0, 1, value=None, failure="timeout")])
    feed(target, [reward(0, 2, value=math.nan), sample(0, 2)])
    assert target.num_ready == 0
    feed(target, [sample(0, 3), reward(0, 3, value=0.5)])
    batch = target.cut(0, 1)
    assert batch is not None
    assert [(m.sample.member, m.reward) for m in batch.groups[0].members] == [(3, 0.5)]
    target.mark_trained(batch)
    assert results(target.take_outcomes()) == {
        "trained": 1,
        "failed(engine_failed: oom)": 1,
        "failed(reward_failed: match: timeout)": 1,
        "dropped(non_finite_reward: match)": 1,
    }


def test_a_group_with_one_bad_member_is_dropped_at_once_when_all_are_needed() -> None:
    target = assembler()
    records = [record for record in whole(0) if not (isinstance(record, Sample) and record.member == 3)]
    feed(target, [*records, sample(0, 3, failure="aborted")])
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: "dropped(incomplete: 7/8)"}
    assert results(drafts) == {"dropped(group_dropped)": 7, "failed(aborted)": 1}


def test_case_27_order_and_interleaving_change_no_batch() -> None:
    """Case 27."""
    sizes = {0: 8, 1: 8, 2: 5, 3: 1}
    records = [record for group, size in sizes.items() for record in whole(group, size=size)]
    batches = []
    for seed in range(5):
        shuffled = records[:]
        random.Random(seed).shuffle(shuffled)
        target = assembler()
        feed(target, shuffled)
        batches.append(target.cut(0, 4))
    assert batches[0] is not None
    assert [len(group.members) for group in batches[0].groups] == [8, 8, 5, 1]
    assert all(batch == batches[0] for batch in batches)
