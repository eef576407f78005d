"""The reward `environment`: what the environment of a multi-turn rollout gave, summed over its turns.

Role: makes the rewards that travel with a sample its reward, so that an environment needs no scorer of its own.
Data in: `Sample.step_rewards`. Data out: their sum, each discounted by the number of turns before it.
Invariants: the same sample gives the same number; a sample without an environment is a failure, never 0.
Failure: `ValueError`, which the consumer turns into a failure of the sample.
"""

from __future__ import annotations

import numpy as np

from consumers.rewards.api import Sample
from schemas.packed import unpack_f32


class EnvironmentReturn:
    """Sum of the step rewards.

    Args:
        discount: factor per turn, above 0 and at most 1.
    """

    name = "environment"
    version = "1"

    def __init__(self, *, discount: float = 1.0) -> None:
        if not 0 < discount <= 1:
            raise ValueError(f"discount {discount}; allowed are numbers above 0 up to 1")
        self._discount = discount

    def score(self, sample: Sample) -> float:
        """The return of the trajectory.

        Raises:
            ValueError: the sample has no step rewards.
        """
        if not sample.step_rewards:
            raise ValueError("the sample has no step rewards: it was made without an [environment]")
        rewards = unpack_f32(sample.step_rewards).astype(np.float64)
        return float((rewards * self._discount ** np.arange(len(rewards))).sum())
