"""Reward per birth version: the join of samples and rewards along the surviving history.

Data in: samples, rewards and outcomes of one partition at a time. Data out: count, mean and spread of rewards, and of
the lengths of completions, per birth step.
Invariants: a sample that has an outcome counts as it was trained, with the rewards and weights of then, which a later
phase may not share; any other counts when every required reward of now gave a finite value, and optional ones add to it
where they are. The first copy of a sample and of a reward counts; samples of abandoned branches do not count. Memory is
one partition's ids and three numbers per birth step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.history import Lineages
from pipeline.reward_rule import RewardRule, RewardTerm
from schemas.records import Outcome, Reward, Sample, birth_version

BYTES_PER_TOKEN = 4  # int32
_Key = tuple[int, int, str]  # group, member, attempt


@dataclass
class Spread:
    """Count, sum, sum of squares and range of rewards."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, value: float) -> None:
        """Add one reward."""
        self.num += 1
        self.total += value
        self.squares += value * value
        self.lowest = min(self.lowest, value)
        self.highest = max(self.highest, value)

    @property
    def mean(self) -> float:
        """Mean; there must be at least one value."""
        return self.total / self.num

    @property
    def std(self) -> float:
        """Standard deviation."""
        return math.sqrt(max(0.0, self.squares / self.num - self.mean**2))

    @property
    def band(self) -> tuple[float, float]:
        """One standard deviation to either side of the mean, within what was seen."""
        return max(self.lowest, self.mean - self.std), min(self.highest, self.mean + self.std)


class Scores:
    """Folds samples and rewards.

    Args:
        lineages: which versions survive.
        rewards: what enters the training signal, by name.
    """

    def __init__(self, *, lineages: Lineages, rewards: Mapping[str, float | RewardTerm]) -> None:
        self._lineages = lineages
        self._rule = RewardRule(rewards) if rewards else None
        self._births: dict[_Key, int] = {}
        self._values: dict[_Key, dict[str, float]] = {}
        self._trained: dict[_Key, float] = {}
        self.by_step: dict[int, Spread] = {}
        self.tokens_by_step: dict[int, Spread] = {}  # completion tokens of a sample

    def add_sample(self, sample: Sample) -> None:
        """Take one sample."""
        if sample.failure is not None or not sample.version_runs:
            return
        birth = birth_version(sample.version_runs)
        key = (sample.group, sample.member, sample.attempt)
        if key not in self._births and self._lineages.survives(birth.lineage, birth.step):
            self._births[key] = birth.step
            num_tokens = len(sample.completion_tokens) // BYTES_PER_TOKEN
            self.tokens_by_step.setdefault(birth.step, Spread()).add(float(num_tokens))

    def add_reward(self, reward: Reward) -> None:
        """Take one reward."""
        rule = self._rule
        if rule is None or reward.value is None or reward.name not in rule.weights or not math.isfinite(reward.value):
            return
        key = (reward.group, reward.member, reward.attempt)
        self._values.setdefault(key, {}).setdefault(reward.name, reward.value)

    def add_outcome(self, outcome: Outcome) -> None:
        """Take one outcome of the surviving history."""
        if not self._lineages.survives(outcome.lineage, outcome.step):
            return
        for member in outcome.members:
            if member.rewards and member.attempt is not None:
                total = sum(use.weight * use.value for use in member.rewards)
                self._trained[outcome.group, member.member, member.attempt] = total

    def end_partition(self) -> None:
        """Join what was taken since the last call, and forget it: a sample and its rewards share a partition."""
        for key, step in self._births.items():
            values = self._values.get(key)
            if key in self._trained:
                self.by_step.setdefault(step, Spread()).add(self._trained[key])
            elif values is not None and self._rule is not None and self._rule.is_enough(values):
                self.by_step.setdefault(step, Spread()).add(self._rule.combine(values))
        self._births.clear()
        self._values.clear()
        self._trained.clear()

    def mean_over(self, steps: Iterable[int]) -> float | None:
        """Mean reward of all samples born at these steps; None without any."""
        spreads = [self.by_step[step] for step in steps if step in self.by_step]
        num = sum(spread.num for spread in spreads)
        return sum(spread.total for spread in spreads) / num if num else None
