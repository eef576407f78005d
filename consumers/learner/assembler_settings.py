"""How groups are put together: what the assembler is told once.

Role: the run's settings, its rewards and the model's limits, in the form the assembler wants them.
Data in and out: plain frozen values.
Failure: `ValueError` when no reward is required.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from consumers.learner.staleness import StalenessRule
from pipeline.reward_rule import RewardRule, RewardTerm
from pipeline.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class AssemblerSettings:
    """How groups are put together."""

    rewards: RewardRule
    staleness: StalenessRule
    min_group_members: int | None  # fewest valid members to be trained; None: all
    deadline_s: float  # engine-ready time after which an open group is closed
    buffer_bytes: int  # encoded bytes of unclosed groups above which `over_limit` holds
    vocab_size: int | None = None  # of the model; None: token ids have no upper limit
    context_tokens: int | None = None  # most tokens of prompt and completion the model takes; None: not checked
    unverified: Literal["train", "drop"] = "train"  # what becomes of samples of weights that could not be checked
    needs_reference: bool = False  # members are final only once the reference model has scored them
    first_group: int = 0  # open groups below it belong to an earlier phase of the run, and are dropped
    no_signal_limit: int = 0  # most groups without a signal that are dropped between two steps; 0: none
    steps_are_signal: bool = False  # turns' own rewards are a signal as well

    @classmethod
    def of_run(
        cls,
        run: RunSettings,
        *,
        rewards: Mapping[str, float | RewardTerm],
        buffer_bytes: int,
        vocab_size: int | None = None,
        context_tokens: int | None = None,
        unverified: Literal["train", "drop"] = "train",
    ) -> AssemblerSettings:
        """From the run's settings and its rewards, by name; shadows are left out.

        Raises:
            ValueError: no reward is required, or one cannot work.
        """
        return cls(
            rewards=RewardRule({name: term for name, term in rewards.items() if not _is_shadow(term)}),
            staleness=StalenessRule(max_age=run.max_staleness, on_stale=run.on_stale),
            min_group_members=run.min_group_members,
            deadline_s=run.group_deadline_s,
            buffer_bytes=buffer_bytes,
            vocab_size=vocab_size,
            context_tokens=context_tokens,
            unverified=unverified,
        )


def _is_shadow(term: float | RewardTerm) -> bool:
    return term.is_shadow if isinstance(term, RewardTerm) else term == 0
