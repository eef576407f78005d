"""A made batch with log-probabilities of every policy, small enough to be gone through by hand.

Role: what the float64 reference and the real functions are both given.
Data out: groups of members as numpy arrays in float64; the same as a `Batch`.
Invariants: every number fits float32 without rounding, so both sides compute with the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consumers.learner.batch import Batch, TrainGroup, TrainMember
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import Sample, SamplingParams, Version, VersionRun

Floats = npt.NDArray[np.float64]
MAX_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Member:
    """One sample; arrays have shape [tokens] unless said otherwise."""

    reward: float
    new: Floats
    proximal: Floats
    behaviour: Floats
    reference: Floats
    mask: Floats
    turn_ends: list[int]
    step_rewards: Floats  # [turns]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Groups of members."""

    groups: list[list[Member]]

    def batch(self, *, with_reference: bool) -> Batch:
        """As the trainer gets it."""
        groups = tuple(
            TrainGroup(
                group=number,
                attempt="a",
                members=tuple(
                    TrainMember(
                        sample=_sample(member, group=number, number=place),
                        reward=member.reward,
                        rewards=(),
                        version=Version(lineage=1, step=0),
                        age=0,
                        reference=pack_f32(member.reference.astype(np.float32)) if with_reference else None,
                    )
                    for place, member in enumerate(group)
                ),
                age=0,
            )
            for number, group in enumerate(self.groups)
        )
        return Batch(step=1, groups=groups)


def make_case(*, seed: int, num_groups: int = 6, group_size: int = 8, has_turns: bool = False) -> Case:
    """Random members; the last group has equal rewards, which no algorithm may learn from."""
    draw = np.random.default_rng(seed)
    groups = [[_member(draw, has_turns=has_turns) for _ in range(group_size)] for _ in range(num_groups)]
    equal = {"reward": 0.5, "step_rewards": np.zeros(1)}
    flat = [Member(**{**vars(each), **equal, "turn_ends": [len(each.new)]}) for each in groups[-1]]
    return Case(groups=[*groups[:-1], flat])


def _member(draw: np.random.Generator, *, has_turns: bool) -> Member:
    count = int(draw.integers(3, MAX_TOKENS + 1))
    new = _f32(-draw.exponential(1.5, count))
    ends = sorted({count, *map(int, draw.integers(1, count, 2))}) if has_turns else [count]
    mask = np.ones(count)
    if has_turns:
        mask[: max(1, ends[0] - 1)] = 0.0
    return Member(
        reward=float(_f32(draw.random(1))[0]),
        new=new,
        proximal=_f32(np.minimum(0, new + draw.normal(0, 0.3, count))),
        behaviour=_f32(np.minimum(0, new + draw.normal(0, 0.5, count))),
        reference=_f32(np.minimum(0, new + draw.normal(0, 0.5, count))),
        mask=mask,
        turn_ends=ends,
        step_rewards=_f32(draw.normal(0, 1, len(ends))) if has_turns else np.zeros(1),
    )


def _f32(values: npt.NDArray[np.float64]) -> Floats:
    return values.astype(np.float32).astype(np.float64)


def _sample(member: Member, *, group: int, number: int) -> Sample:
    count = len(member.new)
    return Sample(
        run="bench",
        group=group,
        member=number,
        attempt="a",
        producer="",
        prompt_tokens=pack_i32([1, 2]),
        completion_tokens=pack_i32([3] * count),
        logprobs=pack_f32(member.behaviour.astype(np.float32)),
        loss_mask=pack_u8(member.mask.astype(np.uint8)),
        version_runs=(VersionRun(num_tokens=count, version=Version(lineage=1, step=0)),),
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        seed=0,
        started_unix_ms=0,
        finished_unix_ms=0,
        turns=pack_i32(member.turn_ends) if len(member.turn_ends) > 1 else b"",
        step_rewards=pack_f32(member.step_rewards.astype(np.float32)) if len(member.turn_ends) > 1 else b"",
    )
