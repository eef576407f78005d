"""The advantages a group was trained with, computed again from its outcome and samples.

Role: what the viewer colours tokens by. The learner's own functions do the sum; torch is not needed.
Data in: samples and outcome of one attempt, the name of the advantage. Data out: per member a number or one per token.
Invariants: only trained members have one; an advantage of a plug-in is not computed here, and the reason says so.
Failure: none; what cannot be computed is the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from consumers.learner.advantages import BUILT_IN, rewards_of
from consumers.learner.batch import TrainGroup, TrainMember
from schemas.errors import CodecError
from schemas.reasons import Reason, Result
from schemas.records import MemberOutcome, Outcome, Sample, Version

# The advantage of each `learner.algorithm`, as `consumers.learner.algorithms` (which imports torch) has it.
OF_ALGORITHM: Mapping[str, str] = {
    "grpo": "grpo",
    "dr_grpo": "centred",
    "rloo": "rloo",
    "decoupled_ppo": "grpo",
    "tis_token": "grpo",
    "tis_sequence": "grpo",
    "gspo": "grpo",
    "dpo": "best_worst",
    "sft": "best",
    "step_grpo": "step",
}
_COUNTED = frozenset({Reason.NO_SIGNAL.value})


@dataclass(frozen=True, kw_only=True)
class AdvantageView:
    """Advantages by member number."""

    name: str
    values: Mapping[int, float | list[float]] = field(default_factory=dict)
    why: str = ""  # why there are none


def advantages_of(outcome: Outcome, samples: Mapping[int, Sample], *, name: str | None) -> AdvantageView:
    """See the module.

    Args:
        outcome: of the group.
        samples: of its winning attempt, by member.
        name: of the advantage; None: the settings are not at hand.
    """
    if name is None:
        return AdvantageView(name="", why="the run's settings are not at hand, so which advantage it uses is not known")
    if name not in BUILT_IN:
        return AdvantageView(name=name, why="it comes from a plug-in, which is not run here")
    members = [_member(each, samples[each.member]) for each in _counted(outcome) if each.member in samples]
    if not members:
        return AdvantageView(name=name, why="no member of this group was trained")
    if len(members) < len(_counted(outcome)):
        return AdvantageView(name=name, why="not all of its samples were found")
    group = TrainGroup(group=outcome.group, attempt=str(outcome.attempt), members=tuple(members), age=0)
    try:
        found = BUILT_IN[name](rewards_of(group))
    except (ValueError, CodecError) as error:
        return AdvantageView(name=name, why=str(error))
    return AdvantageView(
        name=name,
        values={member.sample.member: _plain(value) for member, value in zip(members, found, strict=True)},
    )


def _counted(outcome: Outcome) -> Sequence[MemberOutcome]:
    return [each for each in outcome.members if each.result == Result.TRAINED or each.reason in _COUNTED]


def _member(member: MemberOutcome, sample: Sample) -> TrainMember:
    return TrainMember(
        sample=sample,
        reward=sum(use.weight * use.value for use in member.rewards),
        rewards=member.rewards,
        version=member.version if member.version is not None else Version(lineage=0, step=0),
        age=0 if member.age is None else member.age,
    )


def _plain(value: object) -> float | list[float]:
    array = np.asarray(value, np.float64)
    return float(array) if array.ndim == 0 else [float(each) for each in array]
