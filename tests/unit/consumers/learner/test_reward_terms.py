"""Named rewards together: weights, gates, optional ones, and what is done without one."""

from __future__ import annotations

import pytest

from consumers.learner.assembler import Assembler
from consumers.learner.recorded.history import reward_of
from consumers.rewards.settings import RewardSettings
from pipeline.reward_rule import RewardRule, RewardTerm
from schemas.records import MemberOutcome, Record
from tests.unit.consumers.learner.material import assembler, feed, let_pass, prompt, reward, sample
from topics.clock import ManualClock

SIZE = 4


def group(**values: list[float | None]) -> list[Record]:
    """A group of four whose members have these rewards; None: it failed; a shorter list: the rest never came."""
    records: list[Record] = [prompt(0, size=SIZE), *(sample(0, member) for member in range(SIZE))]
    for name, given in values.items():
        for member, value in enumerate(given):
            failure = "Boom: no" if value is None else None
            records.append(reward(0, member, name=name, value=value, failure=failure))
    return records


def cut(target: Assembler) -> list[float]:
    """What the members of the one group are trained with; empty: it is not trained."""
    batch = target.cut(0, 1)
    if batch is None:
        return []
    for member in batch.members:
        assert reward_of(MemberOutcome(member=0, result="trained", rewards=member.rewards)) == member.reward
    return [member.reward for member in batch.members]


def members_of(target: Assembler) -> list[str]:
    (draft,) = target.take_outcomes()
    return [f"{member.result}: {member.reason}" for member in draft.members]


def test_behind_a_closed_gate_the_others_count_with_weight_0() -> None:
    terms = {"format": RewardTerm(weight=0.0, gate_above=0.5), "match": RewardTerm(), "short": RewardTerm(weight=0.5)}
    target = assembler(weights=terms)
    feed(target, group(format=[1, 0.5, 0.6, 0], match=[1, 1, 0, 1], short=[1, 1, 1, 1]))
    assert cut(target) == [1.5, 0.0, 0.5, 0.0]


def test_the_weight_of_a_gate_counts_in_either_case() -> None:
    target = assembler(weights={"format": RewardTerm(weight=0.25, gate_above=0.0), "match": RewardTerm()})
    feed(target, group(format=[1, -1, 1, 0], match=[1, 1, 0, 1]))
    assert cut(target) == [1.25, -0.25, 0.25, 0.0]


def test_an_optional_reward_that_failed_for_one_is_left_out_for_all() -> None:
    target = assembler(weights={"match": RewardTerm(), "judge": RewardTerm(required=False, weight=10)})
    feed(target, group(match=[1, 0, 1, 0], judge=[1, 1, None, 1]))
    assert cut(target) == [1, 0, 1, 0]


def test_an_optional_reward_is_waited_for_until_the_deadline_and_then_left_out() -> None:
    clock = ManualClock()
    target = assembler(weights={"match": RewardTerm(), "judge": RewardTerm(required=False)}, clock=clock)
    feed(target, group(match=[1, 0, 1, 0], judge=[5, 5, 5]))
    assert cut(target) == []
    let_pass(target, clock, 101.0)
    assert cut(target) == [1, 0, 1, 0]


def test_an_optional_reward_that_came_in_time_counts() -> None:
    target = assembler(weights={"match": RewardTerm(), "judge": RewardTerm(required=False)})
    feed(target, group(match=[1, 0, 1, 0], judge=[5, 5, 5, 5]))
    assert cut(target) == [6, 5, 6, 5]


def test_leave_out_waits_for_nobody() -> None:
    judge = RewardTerm(required=False, missing="leave_out")
    late = assembler(weights={"match": RewardTerm(), "judge": judge})
    feed(late, group(match=[1, 0, 1, 0], judge=[5, 5]))
    assert cut(late) == [1, 0, 1, 0]
    in_time = assembler(weights={"match": RewardTerm(), "judge": judge})
    feed(in_time, group(judge=[5, 5, 5, 5], match=[1, 0, 1, 0]))
    assert cut(in_time) == [6, 5, 6, 5]


@pytest.mark.parametrize(("missing", "expected"), [("wait", [1, 0, 1]), ("fail", [])])
def test_a_required_reward_that_failed_ends_its_sample_or_its_group(missing: str, expected: list[float]) -> None:
    term = RewardSettings(plugin="exact_match", missing=missing).term  # type: ignore[arg-type]
    target = assembler(weights={"match": term}, min_group_members=2)
    feed(target, group(match=[1, 0, None, 1]))
    assert cut(target) == expected
    if missing == "fail":
        assert members_of(target) == [
            "dropped: group_dropped",
            "dropped: group_dropped",
            "failed: reward_failed: match: Boom: no",
            "dropped: group_dropped",
        ]


def test_an_attempt_that_was_given_up_does_not_end_the_group_of_another_one() -> None:
    """Its producer died between two samples, and the reward of the first failed."""
    clock = ManualClock()
    term = RewardSettings(plugin="exact_match", missing="fail").term
    target = assembler(weights={"match": term}, min_group_members=3, clock=clock)
    whole = group(match=[1, 0, 1])
    given_up: list[Record] = [sample(0, 3, attempt="b"), reward(0, 3, attempt="b", value=None, failure="Boom: no")]
    feed(target, [whole[0], *given_up, *whole[1:4], *whole[5:]])  # one sample of the other never came
    let_pass(target, clock, 101.0)
    assert cut(target) == [1, 0, 1]


@pytest.mark.parametrize(("missing", "expected"), [("wait", [1, 0, 1]), ("fail", [])])
def test_a_required_reward_that_never_came_ends_its_sample_or_its_group(missing: str, expected: list[float]) -> None:
    clock = ManualClock()
    term = RewardSettings(plugin="exact_match", missing=missing).term  # type: ignore[arg-type]
    target = assembler(weights={"match": term}, min_group_members=2, clock=clock)
    feed(target, group(match=[1, 0, 1]))
    let_pass(target, clock, 101.0)
    assert cut(target) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"required": False, "missing": "fail"},
        {"missing": "leave_out"},
        {"required": False, "gate_above": 0.0},
        {"weight": float("inf")},
    ],
)
def test_terms_that_cannot_work_are_refused_where_they_are_written(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"belongs to|finite"):
        RewardSettings.model_validate({"plugin": "exact_match"} | wrong)
    with pytest.raises(ValueError, match=r"belongs to|finite"):
        RewardRule({"match": RewardTerm(), "wrong": RewardTerm(**wrong)})  # type: ignore[arg-type]


def test_optional_rewards_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one required"):
        RewardRule({"judge": RewardTerm(required=False)})


def test_a_gate_of_weight_0_is_no_shadow() -> None:
    assert not RewardSettings(plugin="exact_match", weight=0.0, gate_above=0.0).is_shadow
    assert RewardSettings(plugin="exact_match", weight=0.0).is_shadow
