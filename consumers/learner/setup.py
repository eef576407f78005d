"""What a learner rank is made from, and the parts that every rank makes the same way.

Role: settings in, live parts out.
Data in: the run's settings. Data out: a trainer, an assembler.
Failure: `EngineError` when the model directory cannot be loaded; `ValueError` when no reward is required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from consumers.learner.algorithms import ALGORITHMS, is_built_in
from consumers.learner.assembler import Assembler
from consumers.learner.assembler_settings import AssemblerSettings
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import Trainer
from pipeline.history import ClosedSet, Lineages
from pipeline.redis_client import RedisClient
from pipeline.reward_rule import RewardTerm
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.stage import StageContext


@dataclass(frozen=True, kw_only=True)
class LearnerSetup:
    """What the learner is made from."""

    settings: LearnerSettings
    model: ModelSettings
    weights: WeightsSettings
    rewards: Mapping[str, float | RewardTerm]  # what enters the training signal; a number is a required one's weight
    lease_s: float
    redis: RedisClient | None = None
    has_reference: bool = False  # a reference model scores samples, and they are trained only then
    trainer: Callable[[], Trainer] | None = None  # given: used in place of the model's own


def make_trainer(context: StageContext, setup: LearnerSetup, *, rank: int = 0) -> Trainer:
    """Model and optimizer of a rank; on a host with GPUs every rank has one of its own.

    Raises:
        EngineError: the model directory cannot be loaded.
    """
    if setup.trainer is not None:
        return setup.trainer()
    return Trainer(setup.settings, _own_device(setup.model, setup.settings, rank=rank), seed=context.run.seed)


def make_assembler(
    context: StageContext,
    setup: LearnerSetup,
    *,
    trainer: Trainer,
    lineages: Lineages,
    closed: ClosedSet,
    step: int,
) -> Assembler:
    """The join, at the step that was restored."""
    settings = AssemblerSettings.of_run(
        context.run,
        rewards=setup.rewards,
        buffer_bytes=setup.settings.buffer_bytes,
        vocab_size=trainer.vocab_size,
        context_tokens=trainer.context_tokens,
        unverified=setup.settings.unverified,
    )
    settings = replace(
        settings,
        needs_reference=setup.has_reference,
        first_group=setup.settings.first_group,
        no_signal_limit=no_signal_limit(setup.settings, groups_per_step=context.run.groups_per_step),
        steps_are_signal=steps_are_signal(setup.settings),
    )
    return Assembler(settings, clock=context.clock, lineages=lineages, closed=closed, step=step)


def no_signal_limit(settings: LearnerSettings, *, groups_per_step: int) -> int:
    """Groups without a signal that one rank drops at most between two steps; the ranks share the learner's number."""
    if settings.no_signal != "drop":
        return 0
    return -(-settings.no_signal_batches * groups_per_step // settings.ranks)


def steps_are_signal(settings: LearnerSettings) -> bool:
    """Whether the advantage looks at what single turns earned; a plug-in may."""
    name = ALGORITHMS[settings.algorithm].advantage if settings.advantage is None else settings.advantage
    return name == "step" or not is_built_in(name, loss=False)


def _own_device(model: ModelSettings, settings: LearnerSettings, *, rank: int) -> ModelSettings:
    """`cuda` means a GPU of the rank's own when there are several ranks."""
    if settings.ranks == 1 or model.device != "cuda":
        return model
    return model.model_copy(update={"device": f"cuda:{rank % max(1, torch.cuda.device_count())}"})
