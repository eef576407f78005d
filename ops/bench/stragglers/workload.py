"""The workload, in model seconds. Not to be tuned: the figures of different rules are compared on it.

Lengths are log-normal; a rollout slot decodes its sequences at a constant rate each; a learner step costs a time per
token, shared by the slots it has, and a constant; slots that change sides are away for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Constants of the model, and how much of it is run."""

    num_engines: int = 8
    sequences_per_engine: int = 32
    tokens_per_s: float = 40.0  # of one sequence
    median_tokens: int = 400
    sigma: float = 0.6
    max_tokens: int = 4096
    groups_per_step: int = 64
    group_size: int = 8
    learner_s_per_token: float = 0.4e-3  # over the slots it has
    learner_constant_s: float = 3.0
    switch_s: float = 2.0  # a slot that changes sides, each way
    spare_groups: int = 32  # admitted beyond the first batch, where a step need not wait for its last group
    pack_below: float = 0.25
    num_steps: int = 33
    num_warm_steps: int = 3  # not counted
    num_retirements: int = 24
    tick_s: float = 1.0
    seed: int = 11

    @classmethod
    def quick(cls) -> Workload:
        """Enough to see that it works."""
        return cls(num_steps=5, num_warm_steps=1, num_retirements=3)

    @property
    def tokens_per_tick(self) -> int:
        """Of one sequence."""
        return round(self.tokens_per_s * self.tick_s)

    def length(self, seed: int) -> int:
        """Tokens of the completion that draws with this seed, in whichever engines."""
        normal = np.random.default_rng((self.seed, seed)).standard_normal()
        return min(self.max_tokens, max(1, round(self.median_tokens * math.exp(self.sigma * normal))))

    def learner_s(self, num_tokens: int, *, num_slots: int) -> float:
        """Time of a learner step."""
        return self.learner_s_per_token * num_tokens / num_slots + self.learner_constant_s
