"""Advantages depend on a group's own rewards and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from consumers.learner.advantages import (
    BUILT_IN,
    GroupRewards,
    best_only,
    best_worst,
    grpo_advantages,
    rewards_of,
    rloo_advantages,
    step_advantages,
)
from ops.bench.algorithms.case import make_case
from schemas.packed import unpack_f32


def test_matches_the_formula() -> None:
    rewards = [0.0, 1.0, 1.0, 0.25]
    values = np.array(rewards)
    expected = (values - values.mean()) / (values.std() + 1e-6)
    assert np.array_equal(grpo_advantages(rewards), expected)


@pytest.mark.parametrize("rewards", [[0.7], [1.0, 1.0, 1.0], [0.0] * 8])
def test_without_signal_gives_exact_zeros(rewards: list[float]) -> None:
    """Case 27."""
    assert grpo_advantages(rewards).tolist() == [0.0] * len(rewards)


def test_without_std_leaves_the_scale() -> None:
    assert grpo_advantages([0.0, 2.0], scale_by_std=False).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_refuses_what_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        grpo_advantages([0.0, bad])


def group_of(rewards: list[float], *, ends: list[list[int]], steps: list[list[float]]) -> GroupRewards:
    return GroupRewards(
        rewards=np.array(rewards),
        num_tokens=tuple(each[-1] for each in ends),
        turn_ends=tuple(np.array(each, np.int32) for each in ends),
        step_rewards=tuple(np.array(each, np.float64) for each in steps),
    )


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("rewards", [[0.7], [0.1] * 3])
def test_every_advantage_is_zero_without_signal(name: str, rewards: list[float]) -> None:
    count = len(rewards)
    group = group_of(rewards, ends=[[2]] * count, steps=[[value] for value in rewards])
    assert [np.asarray(each).any() for each in BUILT_IN[name](group)] == [False] * count


def test_leave_one_out_is_the_distance_to_the_others() -> None:
    assert rloo_advantages([1.0, 0.0, 0.5]).tolist() == [0.75, -0.75, 0.0]


def test_steps_of_one_turn_are_the_group_advantage() -> None:
    rewards = [0.0, 1.0, 0.25]
    group = group_of(rewards, ends=[[2]] * 3, steps=[[value] for value in rewards])
    expected = grpo_advantages(rewards)
    assert [each.tolist() for each in step_advantages(group)] == [[value, value] for value in expected.tolist()]


def test_a_step_counts_for_its_own_tokens_and_those_before() -> None:
    group = group_of([1.0, 0.0], ends=[[2, 5], [3]], steps=[[1.0, 0.0], [0.0]])
    first, second = step_advantages(group)
    std = np.std([1.0, 0.0, 0.0]) + 1e-6
    high, low = (1 - 1 / 3) / std, -1 / 3 / std
    assert first.tolist() == pytest.approx([high + low] * 2 + [low] * 3)
    assert second.tolist() == pytest.approx([low] * 3)


def test_the_pair_and_the_best_at_ties() -> None:
    rewards = [0.5, 1.0, 1.0, 0.0, 0.0]
    assert best_worst(rewards).tolist() == [0, 1, 0, -1, 0]
    assert best_only(rewards).tolist() == [0, 1, 1, 0, 0]


def test_what_no_step_earned_is_of_the_last_turn() -> None:
    made = make_case(seed=2, has_turns=True).batch(with_reference=False).groups[0]
    found = rewards_of(made)
    assert [steps.sum() for steps in found.step_rewards] == pytest.approx(found.rewards.tolist())
    given = unpack_f32(made.members[0].sample.step_rewards)
    assert found.step_rewards[0][:-1].tolist() == given[:-1].tolist()
