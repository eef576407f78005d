"""Advantages depend on a group's own rewards and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from consumers.learner.advantages import grpo_advantages


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
