"""Settings of the learner: section `[learner]` of the run file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from consumers.learner.lora_settings import LoraSettings
from consumers.learner.loss_settings import AlgorithmName, LossSettings, Share
from pipeline.settings import PositiveInt, Seconds, Section
from pipeline.sources import SourceSettings
from pipeline.uploads.settings import UploadSettings

Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class OptimizerSettings(Section):
    """`[learner.optimizer]`: AdamW (arXiv 1711.05101)."""

    learning_rate: Rate = Field(default=1e-6, description="Step size.")
    beta1: Share = Field(default=0.9, description="Decay of the first moment.")
    beta2: Share = Field(default=0.999, description="Decay of the second moment.")
    eps: float = Field(default=1e-8, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    warmup_steps: int = Field(
        default=0, ge=0, description="Steps over which the rate rises to its value; Adam's first steps are all noise."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the rate goes on after the warm-up: constant, or down to final_share."
    )
    schedule_steps: PositiveInt | None = Field(
        default=None, description="Step at which a linear or cosine schedule has reached its end."
    )
    final_share: float = Field(
        default=0.0, ge=0, le=1, description="Part of learning_rate that a schedule ends with and stays at."
    )
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this L2 norm.")

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> Self:
        if self.schedule != "constant" and (self.schedule_steps is None or self.schedule_steps <= self.warmup_steps):
            raise ValueError(
                f"schedule = {self.schedule!r} needs schedule_steps above warmup_steps = {self.warmup_steps}, "
                f"seen {self.schedule_steps}"
            )
        return self


class CloningSettings(Section):
    """`[learner.cloning]`: behaviour cloning before the first version is published. 0 steps: none."""

    num_steps: int = Field(default=0, ge=0, description="Cloning steps; they do not count as policy versions.")
    batch_size: PositiveInt = Field(default=64, description="Demonstrations per cloning step.")
    learning_rate: Rate = Field(default=1e-3, description="Step size while cloning.")
    source: SourceSettings | None = Field(
        default=None, description="Where demonstrations come from: prompts whose answer is the demonstration."
    )


class CheckpointSettings(UploadSettings):
    """`[learner.checkpoint]`."""

    every_steps: PositiveInt = Field(default=10, description="Steps between checkpoints; the last step has one always.")
    keep: PositiveInt = Field(default=3, description="Newest checkpoints that are kept.")


class LearnerSettings(Section):
    """`[learner]`."""

    buffer_bytes: PositiveInt = Field(
        default=2 * 1024**3,
        description="Encoded bytes of open groups held in memory; above it the samples partitions are paused.",
    )
    silent_notice_s: Seconds = Field(
        default=60.0, description="Time without progress after which a notice names the silent stage (T1)."
    )
    silent_end_s: Seconds = Field(
        default=600.0, description="Time without progress after which the run ends, naming the silent stage (T2)."
    )
    ranks: PositiveInt = Field(
        default=1,
        description="Processes that train together, data-parallel; rank r reads the partitions p with p mod ranks = r. "
        "With max_ranks: those at the start of the run.",
    )
    min_ranks: PositiveInt | None = Field(
        default=None, description="Fewest ranks the scheduler may leave; absent: as many as ranks."
    )
    max_ranks: PositiveInt | None = Field(
        default=None,
        description="Most ranks it may ask for; absent: as ranks. A change costs a checkpoint and a restart.",
    )
    rendezvous_host: str = Field(
        default="127.0.0.1", description="Address at which rank 0 listens and the other ranks find it."
    )
    rendezvous_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Its port; 0: a free one, which the others read from the run's folder.",
    )
    collective_limit_s: Seconds = Field(
        default=120.0,
        description="Longest time ranks wait for each other, after which all of them end; above what rank 0 needs for "
        "staging a version, a transaction (up to 30 s) or a checkpoint, while the others wait.",
    )
    compare_every_steps: PositiveInt = Field(
        default=20, description="Steps between comparisons of the ranks' weights, by digest."
    )
    unverified: Literal["train", "drop"] = Field(
        default="train",
        description="What becomes of samples whose engine could not show that it computed with the version it names: "
        "trained on, or dropped as `unverified`.",
    )
    mismatch_notice: float = Field(
        default=0.5,
        gt=0,
        description="Mean distance between the sampler's and the trainer's log-probabilities of a step, in nats, above "
        "which a notice is given.",
    )
    keep_gaps: int = Field(
        default=1,
        ge=0,
        le=64,
        description="Samples per step whose distance to the trainer's log-probabilities is kept token by token, on the "
        "ledger, 2 bytes per token: those that lie furthest apart.",
    )
    threads: PositiveInt = Field(default=1, description="torch threads; part of what makes a run repeatable.")
    micro_batch_tokens: PositiveInt = Field(
        default=16_384, description="Padded tokens in one forward and backward pass; bounds the memory of a step."
    )
    outcome_flush_s: Seconds = Field(
        default=0.5, description="Longest time the outcome of a dropped group waits for a step to carry it."
    )
    oracle_file: Path | None = Field(
        default=None, description="Every sample id that enters a loss is appended here and synced; for checks."
    )
    no_signal: Literal["train", "drop"] = Field(
        default="train",
        description="What becomes of groups whose rewards are all equal: trained on, which teaches nothing, or dropped "
        "as `no_signal`, and other prompts are admitted in their place (dynamic sampling of DAPO).",
    )
    no_signal_batches: PositiveInt = Field(
        default=10, description="Most batches of such groups that are dropped for one step; further ones are trained."
    )
    first_group: int = Field(
        default=0,
        ge=0,
        description="Open groups with lower numbers are dropped as `run_ended`; a run in phases sets it.",
    )
    packing: bool = Field(
        default=False,
        description="Lay several samples behind one another in one row, instead of padding each to the longest; "
        "for models of full attention layers.",
    )
    compute_dtype: Literal["model", "bfloat16"] = Field(
        default="model",
        description="Arithmetic of forward and backward passes: as model.dtype, or bfloat16 with weights, gradients "
        "and optimizer state in float32, whatever model.dtype says.",
    )
    algorithm: AlgorithmName = Field(
        default="grpo", description="Which advantage, loss, normaliser and importance weights go together."
    )
    advantage: str | None = Field(
        default=None,
        description="Advantage: grpo, centred, rloo, step, best_worst, best, or a plug-in (module:attr, file.py:attr). "
        "Absent: the algorithm's.",
    )
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings, description="AdamW.")
    loss: LossSettings = Field(default_factory=LossSettings, description="The policy loss.")
    lora: LoraSettings | None = Field(default=None, description="Low-rank adapters; absent: all weights are trained.")
    cloning: CloningSettings = Field(default_factory=CloningSettings, description="Behaviour cloning.")
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings, description="Checkpoints.")

    @model_validator(mode="after")
    def _limits_hold_ranks(self) -> Self:
        fewest, most = self.rank_limits
        if not fewest <= self.ranks <= most:
            raise ValueError(f"ranks = {self.ranks} is not within min_ranks = {fewest} and max_ranks = {most}")
        return self

    @property
    def rank_limits(self) -> tuple[int, int]:
        """Fewest and most ranks."""
        fewest = self.ranks if self.min_ranks is None else self.min_ranks
        most = self.ranks if self.max_ranks is None else self.max_ranks
        return fewest, most
