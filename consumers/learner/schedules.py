"""The learning rate of each step.

Role: pure; a function of the settings and the step's number, so a restart needs no state.
Invariants: the first step's rate is above 0, and no rate is above `learning_rate`.
"""

from __future__ import annotations

import math

from consumers.learner.settings import OptimizerSettings


def learning_rate(optimizer: OptimizerSettings, step: int) -> float:
    """Rate of the step that produces version `step` (1 is the first).

    It rises in equal parts over `warmup_steps`, stays at `learning_rate`, or goes down from there to
    `final_share` of it at `schedule_steps`, on a line or on half a cosine (arXiv 1608.03983), and stays there.
    """
    full = optimizer.learning_rate
    rising = min(1.0, step / (optimizer.warmup_steps + 1))
    if optimizer.schedule == "constant" or optimizer.schedule_steps is None or step <= optimizer.warmup_steps:
        return full * rising
    begin, end = optimizer.warmup_steps + 1, optimizer.schedule_steps
    done = min(1.0, (step - begin) / max(1, end - begin))
    left = 1.0 - done if optimizer.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return full * (optimizer.final_share + (1.0 - optimizer.final_share) * left)
