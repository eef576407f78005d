"""Settings of the loss: section `[learner.loss]` of the run file."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from pipeline.settings import PositiveInt, Section

Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
AlgorithmName: TypeAlias = Literal[
    "grpo", "dr_grpo", "rloo", "decoupled_ppo", "tis_token", "tis_sequence", "gspo", "dpo", "sft", "step_grpo"
]
Normaliser: TypeAlias = Literal["token", "sequence", "constant", "sequence_sum"]
Importance: TypeAlias = Literal["token", "sequence", "full", "none"]


class LossSettings(Section):
    """`[learner.loss]`: the policy loss."""

    function: str | None = Field(
        default=None,
        description="Loss per token: clipped, reinforce, gspo, dpo, sft, or a plug-in (module:attr, file.py:attr). "
        "Absent: the algorithm's.",
    )
    clip_low: Share = Field(default=0.2, description="Ratios below 1 - clip_low gain nothing.")
    clip_high: float = Field(default=0.2, ge=0, description="Ratios above 1 + clip_high gain nothing.")
    importance: Importance | None = Field(
        default=None,
        description="Weights for being off-policy: of each token, of the whole sequence, full (token, without the "
        "cap) or none. Absent: the algorithm's.",
    )
    importance_cap: float = Field(default=2.0, gt=0, description="Largest weight for being off-policy.")
    normaliser: Normaliser | None = Field(
        default=None,
        description="What the sum over tokens is divided by: token (tokens), sequence (each one's tokens, then "
        "sequences), constant (a constant, then sequences), sequence_sum (sequences). Absent: the algorithm's.",
    )
    constant_tokens: PositiveInt | None = Field(
        default=None, description="Of the normaliser `constant`; absent: each sample's max_tokens."
    )
    beta: float = Field(default=0.1, gt=0, allow_inf_nan=False, description="dpo: how strongly a margin is enforced.")
    reference_kl: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the KL divergence to the reference model; above 0 it needs [reference].",
    )
    scale_by_std: bool = Field(default=True, description="Divide advantages by the group's standard deviation.")
    minibatches: PositiveInt = Field(default=1, description="Optimizer updates within one step.")

    @property
    def importance_level(self) -> Importance:
        """The level that is meant; the trainer's own settings always name one."""
        return "token" if self.importance is None else self.importance
