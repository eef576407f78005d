"""Faults that are planted in the demo's work, each of a size that follows from the run without any.

Data in: what was measured without a fault. Data out: settings, and the plug-ins they name, as files.
Invariants: only settings and plug-ins that anybody may use; nothing in a stage knows of it.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SLOWER = 10.0  # the reward, against what comes
LATE_STEPS = 4.0  # time that a version takes on the throttled link, in steps
_REWARD = '''"""The demo's reward, slowed down."""

import time

from consumers.rewards.builtin import ReasoningGym


class Slow(ReasoningGym):
    def score(self, sample):
        time.sleep({sleep_s!r})
        return super().score(sample)
'''
_LOSS = '''"""The usual loss, slowed down."""

import time

from consumers.learner.losses import clipped_loss


def slow(terms, settings):
    time.sleep({sleep_s!r} * len(terms.new_logprobs))
    return clipped_loss(terms, settings)
'''


@dataclass(frozen=True, kw_only=True)
class Usual:
    """The run without a fault."""

    samples_per_s: float
    step_s: float  # from step to step
    work_s: float  # of it, what the learner works
    step_tokens: float  # completion tokens in a step
    version_bytes: float


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault."""

    name: str
    kind: str  # of the verdict that names it
    what: str  # for people, with numbers
    overrides: tuple[str, ...]


def slow_reward(usual: Usual, folder: Path) -> Fault:
    """The reward scores a tenth of what comes."""
    per_s = usual.samples_per_s / SLOWER
    path = folder / "slow_reward.py"
    path.write_text(_REWARD.format(sleep_s=1 / per_s))
    return Fault(
        name="reward",
        kind="reward",
        what=f"the reward scores at most {per_s:.0f} samples/s, where {usual.samples_per_s:.0f}/s came",
        overrides=(f'rewards.sum.plugin="{path}:Slow"', "rewards.sum.num_workers=1"),
    )


def slow_link(usual: Usual, folder: Path) -> Fault:  # noqa: ARG001 - it needs no file
    """A version takes several steps to travel."""
    bytes_s = usual.version_bytes / (LATE_STEPS * usual.step_s)
    return Fault(
        name="weights",
        kind="weights",
        what=f"weights leave at {bytes_s / 1000:.0f} kB/s, so a version travels for {LATE_STEPS:g} steps",
        overrides=(f"traffic.rates={{weights={bytes_s:.1f}}}",),
    )


def slow_learner(usual: Usual, folder: Path) -> Fault:
    """A step takes twice as long."""
    path = folder / "slow_loss.py"
    path.write_text(_LOSS.format(sleep_s=usual.work_s / usual.step_tokens))
    return Fault(
        name="learner",
        kind="learner",
        what=f"the learner works {2 * usual.work_s:.2f} s for a step, where it was {usual.work_s:.2f} s",
        overrides=(f'learner.loss.function="{path}:slow"',),
    )


FAULTS: tuple[Callable[[Usual, Path], Fault], ...] = (slow_reward, slow_link, slow_learner)
