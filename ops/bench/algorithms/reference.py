"""The algorithms once more, written from their papers in plain float64 loops: values to compare with.

Role: shares no code with consumers.learner; slow and easy to read on purpose.
Data in: a `Case`. Data out: the loss, and its derivative by every new log-probability.
Invariants: no torch, no autograd: derivatives are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ops.bench.algorithms.case import MAX_TOKENS, Case, Floats, Member

CLIP_LOW, CLIP_HIGH, CAP, BETA, KL = 0.2, 0.28, 2.0, 0.1, 0.05
Group = list[Member]


@dataclass(kw_only=True)
class Answer:
    """What a loss is, and how it changes."""

    loss: float
    size: float  # sum of the absolute values of what the loss is a sum of: what rounding is measured by
    gradient: list[list[Floats]]  # by group and member: [tokens]


def answer_of(algorithm: str, case: Case, *, with_reference: bool) -> Answer:
    """The reference of an algorithm; `with_reference` adds KL times the divergence to the reference model."""
    if algorithm == "dpo":
        return _dpo(case, with_reference=with_reference)
    advantage, term, normaliser = _PARTS[algorithm]
    weights = _normalise(case, normaliser, only_used=algorithm == "sft" and not with_reference, advantage=advantage)
    found = Answer(loss=0.0, size=0.0, gradient=[])
    for group, group_weights in zip(case.groups, weights, strict=True):
        rows = []
        for member, each, weight in zip(group, advantage(group), group_weights, strict=True):
            value, slope = term(member, each)
            if with_reference:
                ratio = np.exp(member.reference - member.new)
                value = value + KL * (ratio - (member.reference - member.new) - 1)
                slope = slope + KL * (1 - ratio)
            found.loss += float((value * weight).sum())
            found.size += float(np.abs(value * weight).sum())
            rows.append(
                _chain(member, slope, weight=weight, is_sequence=algorithm == "gspo", with_reference=with_reference)
            )
        found.gradient.append(rows)
    return found


def _grpo(group: Group) -> list[Floats]:
    rewards = [member.reward for member in group]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [np.full(len(m.new), 0.0 if std == 0 else (m.reward - mean) / (std + 1e-6)) for m in group]


def _centred(group: Group) -> list[Floats]:
    mean = sum(member.reward for member in group) / len(group)
    return [np.full(len(member.new), member.reward - mean) for member in group]


def _leave_one_out(group: Group) -> list[Floats]:
    found = []
    for place, member in enumerate(group):
        others = [other.reward for number, other in enumerate(group) if number != place]
        found.append(np.full(len(member.new), member.reward - sum(others) / len(others)))
    return found


def _best(group: Group) -> list[Floats]:
    rewards = [member.reward for member in group]
    has_signal = max(rewards) > min(rewards)
    return [np.full(len(m.new), float(has_signal and m.reward == max(rewards))) for m in group]


def _steps(group: Group) -> list[Floats]:
    earned = []
    for member in group:
        steps = [float(value) for value in member.step_rewards]
        steps[-1] += member.reward - sum(steps)
        earned.append(steps)
    every = [value for steps in earned for value in steps]
    mean = sum(every) / len(every)
    std = math.sqrt(sum((value - mean) ** 2 for value in every) / len(every))
    found = []
    for member, steps in zip(group, earned, strict=True):
        values = np.zeros(len(member.new))
        for token in range(len(values)):
            for end, value in zip(member.turn_ends, steps, strict=True):
                if end > token:
                    values[token] += 0.0 if std == 0 else (value - mean) / (std + 1e-6)
        found.append(values)
    return found


Term = Callable[[Member, Floats], tuple[Floats, Floats]]  # value and slope by new, per token


def _clipped(level: str) -> Term:
    def term(member: Member, advantage: Floats) -> tuple[Floats, Floats]:
        value, slope = np.zeros_like(member.new), np.zeros_like(member.new)
        for t in range(len(value)):
            ratio = math.exp(member.new[t] - member.proximal[t])
            weight = math.exp(member.proximal[t] - member.behaviour[t])
            weight = weight if level == "full" else min(weight, CAP)
            bounded = min(max(ratio, 1 - CLIP_LOW), 1 + CLIP_HIGH)
            value[t] = -weight * min(ratio * advantage[t], bounded * advantage[t])
            is_clipped = bounded * advantage[t] < ratio * advantage[t]
            slope[t] = 0.0 if is_clipped else -weight * ratio * advantage[t]
        return value, slope

    return term


def _reinforce(level: str) -> Term:
    def term(member: Member, advantage: Floats) -> tuple[Floats, Floats]:
        apart = member.new - member.behaviour
        if level == "sequence":
            apart = np.full_like(apart, float((apart * member.mask).sum()))
        weight = np.minimum(np.exp(apart), CAP)
        return -weight * advantage * member.new, -weight * advantage

    return term


def _gspo(member: Member, advantage: Floats) -> tuple[Floats, Floats]:
    mean = float(((member.new - member.behaviour) * member.mask).sum() / member.mask.sum())
    ratio, worth = math.exp(mean), float(advantage[0])
    bounded = min(max(ratio, 1 - CLIP_LOW), 1 + CLIP_HIGH)
    slope = 0.0 if bounded * worth < ratio * worth else -ratio * worth
    return np.full_like(member.new, -min(ratio * worth, bounded * worth)), np.full_like(member.new, slope)


def _sft(member: Member, advantage: Floats) -> tuple[Floats, Floats]:
    return -advantage * member.new, -advantage


def _chain(member: Member, slope: Floats, *, weight: Floats, is_sequence: bool, with_reference: bool) -> Floats:
    """Derivative by each new log-probability. GSPO's value at every token depends on all of its sequence."""
    if not is_sequence:
        return slope * weight
    own = KL * (1 - np.exp(member.reference - member.new)) if with_reference else np.zeros_like(slope)
    ratio_part = slope - own
    return own * weight + np.full_like(slope, (ratio_part * weight).sum() / member.mask.sum()) * member.mask


def _normalise(
    case: Case, normaliser: str, *, only_used: bool, advantage: Callable[[Group], list[Floats]]
) -> list[list[Floats]]:
    """What each token's value is multiplied with."""
    used = [[not only_used or bool(each.any()) for each in advantage(group)] for group in case.groups]
    flat = [m for group, row in zip(case.groups, used, strict=True) for m, one in zip(group, row, strict=True) if one]
    num_tokens = sum(float(member.mask.sum()) for member in flat)
    found = []
    for group in case.groups:
        rows = []
        for member in group:
            by_sequence = {"token": 1 / num_tokens, "sequence_sum": 1 / len(flat)}
            by_sequence["sequence"] = 1 / len(flat) / float(member.mask.sum())
            by_sequence["constant"] = 1 / len(flat) / MAX_TOKENS
            rows.append(member.mask * by_sequence[normaliser])
        found.append(rows)
    return found


def _dpo(case: Case, *, with_reference: bool) -> Answer:
    pairs = [group for group in case.groups if len({member.reward for member in group}) > 1]
    found = Answer(loss=0.0, size=0.0, gradient=[[np.zeros_like(m.new) for m in group] for group in case.groups])
    for number, group in enumerate(case.groups):
        if group not in pairs:
            continue
        rewards = [member.reward for member in group]
        best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
        gains = []
        for place in (best, worst):
            member = group[place]
            against = member.reference if with_reference else member.behaviour
            gains.append(float(((member.proximal - against) * member.mask).sum()))
        margin = BETA * (gains[0] - gains[1])
        found.loss += math.log(1 + math.exp(-margin)) / len(pairs)
        found.size = found.loss
        pull = BETA / (1 + math.exp(margin)) / len(pairs)
        found.gradient[number][best] = -pull * group[best].mask
        found.gradient[number][worst] = pull * group[worst].mask
    return found


_PARTS: dict[str, tuple[Callable[[Group], list[Floats]], Term, str]] = {
    "grpo": (_grpo, _clipped("token"), "token"),
    "dr_grpo": (_centred, _clipped("token"), "constant"),
    "rloo": (_leave_one_out, _reinforce("sequence"), "sequence_sum"),
    "decoupled_ppo": (_grpo, _clipped("full"), "token"),
    "tis_token": (_grpo, _reinforce("token"), "token"),
    "tis_sequence": (_grpo, _reinforce("sequence"), "token"),
    "gspo": (_grpo, _gspo, "sequence"),
    "sft": (_best, _sft, "token"),
    "step_grpo": (_steps, _clipped("token"), "token"),
}
