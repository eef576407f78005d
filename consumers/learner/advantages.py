"""Advantages of the members of one group.

Role: turns the rewards of one group into what the loss weighs tokens with. Pure numpy in float64.
Data in: `GroupRewards`. Data out: one number per member, or one per completion token.
Invariants: computed by group only, so arrival order and the company of other groups change nothing (promise 8); a
group of one, or one whose rewards are all equal, gives zeros, never NaN.
Failure: `ValueError` for rewards, or a plug-in's advantages, that are not finite or of another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from consumers.learner.batch import Batch, TrainGroup
from schemas.packed import unpack_f32, unpack_i32

EPS = 1e-6  # added to the standard deviation
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GroupRewards:
    """What an advantage may depend on: one group, members in ascending order."""

    rewards: Floats  # [members], the whole reward of each
    num_tokens: tuple[int, ...]  # completion tokens of each
    turn_ends: tuple[npt.NDArray[np.int32], ...]  # of each, [turns]: completion tokens up to each turn's end
    step_rewards: tuple[Floats, ...]  # of each, [turns]: what each turn earned; they add up to the whole reward


Advantages: TypeAlias = Sequence[float | Floats] | Floats  # per member: a number, or [completion tokens]
AdvantageFunction: TypeAlias = Callable[[GroupRewards], Advantages]


def grpo_advantages(rewards: Sequence[float] | Floats, *, scale_by_std: bool = True, eps: float = EPS) -> Floats:
    """Advantages of one group, shape [members], float64: (r - mean) / (std + eps) of the group.

    Follows GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1), with the population standard deviation;
    `scale_by_std=False` leaves out the division, as Dr. GRPO does (arXiv 2503.20783).

    Raises:
        ValueError: a reward is not finite.
    """
    values = _finite(rewards)
    if _are_equal(values):
        return np.zeros_like(values)
    centred: Floats = values - values.mean()
    return centred / (values.std() + eps) if scale_by_std else centred


def rloo_advantages(rewards: Sequence[float] | Floats) -> Floats:
    """Reward minus the mean of the other members' rewards, shape [members] (RLOO, arXiv 2402.14740, equation 5).

    Raises:
        ValueError: a reward is not finite.
    """
    values = _finite(rewards)
    count = len(values)
    if _are_equal(values):
        return np.zeros_like(values)
    others: Floats = (values.sum() - values) / (count - 1)
    return values - others


def step_advantages(group: GroupRewards) -> list[Floats]:
    """Advantages per completion token from what each turn earned: process supervision (arXiv 2402.03300, 4.1.3).

    Step rewards are normalised by mean and standard deviation over all steps of the group; a token gets the sum over
    its own turn and the later ones. With one turn each this is `grpo_advantages`.

    Raises:
        ValueError: a reward is not finite.
    """
    every = _finite(np.concatenate(group.step_rewards))
    mean, std = every.mean(), 0.0 if _are_equal(every) else every.std()
    found: list[Floats] = []
    for steps, ends, count in zip(group.step_rewards, group.turn_ends, group.num_tokens, strict=True):
        scaled: Floats = np.zeros_like(steps) if std == 0 else (steps - mean) / (std + EPS)
        to_come = np.cumsum(scaled[::-1])[::-1]
        turn_of_token = np.searchsorted(ends, np.arange(count), side="right")
        found.append(to_come[turn_of_token])
    return found


def best_worst(rewards: Sequence[float] | Floats) -> Floats:
    """+1 for the best member, -1 for the worst one, 0 for all others: the pair of DPO (arXiv 2305.18290). At a tie the
    lower member number; all zeros when there is no difference.

    Raises:
        ValueError: a reward is not finite.
    """
    values = _finite(rewards)
    found = np.zeros_like(values)
    if values.max() > values.min():
        found[values.argmax()], found[values.argmin()] = 1.0, -1.0
    return found


def best_only(rewards: Sequence[float] | Floats) -> Floats:
    """1 for the members with the highest reward, 0 for the others: what RAFT fine-tunes on (arXiv 2304.06767). All
    zeros when there is no difference.

    Raises:
        ValueError: a reward is not finite.
    """
    values = _finite(rewards)
    return np.where((values == values.max()) & (values.max() > values.min()), 1.0, 0.0)


BUILT_IN: dict[str, AdvantageFunction] = {
    "grpo": lambda group: grpo_advantages(group.rewards),
    "centred": lambda group: grpo_advantages(group.rewards, scale_by_std=False),
    "rloo": lambda group: rloo_advantages(group.rewards),
    "step": step_advantages,
    "best_worst": lambda group: best_worst(group.rewards),
    "best": lambda group: best_only(group.rewards),
}


def batch_advantages(batch: Batch, function: AdvantageFunction) -> Iterator[Floats]:
    """Advantages of each member of a batch, in the batch's own order, each of shape [completion tokens], float64.

    Raises:
        ValueError: the function gave something of another shape, or not finite.
    """
    for group in batch.groups:
        rewards = rewards_of(group)
        found = function(rewards)
        if len(found) != len(group.members):
            raise ValueError(f"{len(found)} advantages for the {len(group.members)} members of group {group.group}")
        for each, count in zip(found, rewards.num_tokens, strict=True):
            yield _per_token(each, count=count, group=group.group)


def rewards_of(group: TrainGroup) -> GroupRewards:
    """What the advantage function sees of a group: what of a reward no step earned is of the last turn."""
    counts, ends, steps = [], [], []
    for member in group.members:
        sample = member.sample
        count = len(sample.completion_tokens) // 4
        turns = unpack_i32(sample.turns) if sample.turns else np.array([count], np.int32)
        earned = np.zeros(len(turns))
        if sample.step_rewards:
            earned += unpack_f32(sample.step_rewards)
        earned[-1] += member.reward - earned.sum()
        counts.append(count)
        ends.append(turns)
        steps.append(earned)
    rewards = np.array([member.reward for member in group.members], np.float64)
    return GroupRewards(rewards=rewards, num_tokens=tuple(counts), turn_ends=tuple(ends), step_rewards=tuple(steps))


def _finite(rewards: Sequence[float] | Floats) -> Floats:
    values: Floats = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"rewards of a group must be finite, seen {values.tolist()}")
    return values


def _are_equal(values: Floats) -> bool:
    """Their mean may be another number than each of them, by rounding, so it is not asked."""
    return bool((values == values[:1]).all())


def _per_token(advantage: float | Floats, *, count: int, group: int) -> Floats:
    values: Floats = np.asarray(advantage, np.float64)
    if values.shape not in ((), (count,)):
        raise ValueError(f"advantages of shape {values.shape} for {count} tokens of a member of group {group}")
    if not np.isfinite(values).all():
        raise ValueError(f"advantages of group {group} are not finite: {values.tolist()!r:.200}")
    return np.broadcast_to(values, (count,))
