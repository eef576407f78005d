"""Sizes and times of the benchmark, and what the arithmetic says is needed at least."""

from __future__ import annotations

import math
from dataclasses import dataclass

GROUPS_PER_STEP, GROUP_SIZE, SEQUENCES = 16, 4, 32
STEP_S = 1.2  # rank-seconds of a step
USUAL_S, LONG_S = 1.0, 2.0  # of a sequence: the load is one, then the other
SHORT_S = 0.3  # of a sequence, where one rollout is to be enough for two ranks
MOST_ROLLOUTS = 7


@dataclass(frozen=True, kw_only=True)
class ElasticPlan:
    """How long each part takes.

    Attributes:
        settle_s: before the load doubles.
        hold_s: between two changes of the load.
        hold_down_s: after it has halved.
        window_s: over which the scheduler measures rates.
        up_s, down_s: its cool-downs.
        lent_steps: trained while a slot is lent.
    """

    settle_s: float = 10.0
    hold_s: float = 32.0
    hold_down_s: float = 36.0
    window_s: float = 6.0
    up_s: float = 8.0  # longer than the window and a start: what was started is in the rates by then
    down_s: float = 8.0
    lent_steps: int = 6

    @classmethod
    def quick(cls) -> ElasticPlan:
        """Enough to see that it works."""
        return cls(settle_s=2.0, hold_s=10.0, hold_down_s=10.0, window_s=3.0, up_s=4.0, down_s=4.0, lent_steps=1)


def best_rollouts(sequence_s: float) -> int:
    """The fewest producers that could keep the learner busy, if nothing but steps and sequences took time."""
    each_s = SEQUENCES / GROUP_SIZE / sequence_s
    return math.ceil(GROUPS_PER_STEP / STEP_S / each_s)
