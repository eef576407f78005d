"""Learning in an environment, in one process: generator, episodes, engine and trainer of a run, without a log.

Role: the part of `bench environments` that shows what advantages of steps bring, beside one advantage per trajectory.
Data in: the run file of a demo with an environment. Data out: the mean reward of every step.
Invariants: both begin with the same cloned weights and see the same prompts and draws; samples are made by the weights
of one step before (staleness 1), as in a run.
Failure: `TrainingError`, `EngineError` go through.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from consumers.learner.batch import Batch, TrainGroup, TrainMember
from consumers.learner.cloning import Demonstrations
from consumers.learner.loss_settings import AlgorithmName
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import Trainer
from ops.run_file import RunFile
from pipeline.engines.base import Engine
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.torch_engine import open_torch_engine
from pipeline.environments.episodes import open_episodes
from pipeline.sources import open_source
from pipeline.stage import make_context
from producers.rollout.generator import Generator
from schemas.errors import SettingsError
from schemas.packed import unpack_f32
from schemas.records import PromptGroup, Sample, Version
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog

CONTEXT_TOKENS = 64
_STEP_LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean rewards of the steps of one algorithm."""

    algorithm: AlgorithmName
    rewards: tuple[float, ...]

    def ends(self) -> tuple[float, float]:
        """Means over the first and the last fifth."""
        count = max(1, len(self.rewards) // 5)
        return float(np.mean(self.rewards[:count])), float(np.mean(self.rewards[-count:]))


class Arena:
    """Clones once; `learn` begins from there every time.

    Args:
        run_file: with an environment; its model is made in `folder`.

    Raises:
        SettingsError: it has no environment.
    """

    def __init__(self, run_file: RunFile, *, folder: Path) -> None:
        if run_file.environment is None:
            raise SettingsError("there is nothing to act in", hint="the run file needs a section [environment]")
        self._run_file = run_file.model_copy(
            update={"model": run_file.model.model_copy(update={"path": folder / "model"})}
        )
        self._environment = run_file.environment
        make_tiny_model(folder / "model", seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS)
        self._source = open_source(run_file.prompts.source, seed=run_file.run.seed)
        trainer = self._trainer(run_file.learner)
        cloning = run_file.learner.cloning
        shown = Demonstrations.open(cloning, trainer=trainer, seed=run_file.run.seed)
        for number in range(cloning.num_steps):
            trainer.clone(shown.batch(number), number)
        self._start = copy.deepcopy(trainer.model.state_dict())

    def learn(self, algorithm: AlgorithmName, *, num_steps: int) -> Curve:
        """Train for so many steps."""
        trainer = self._trainer(self._run_file.learner.model_copy(update={"algorithm": algorithm}))
        trainer.model.load_state_dict(self._start)
        trainer.model.tie_weights()
        engine = open_torch_engine(
            TorchEngineSettings(model_dir=self._run_file.model.path), version=Version(lineage=1, step=0)
        )
        try:
            engine.load(Version(lineage=1, step=0), trainer.merged_state())
            rewards = tuple(self._steps(trainer, engine, num_steps=num_steps))
        finally:
            engine.close()
        return Curve(algorithm=algorithm, rewards=rewards)

    def _steps(self, trainer: Trainer, engine: Engine, *, num_steps: int) -> Iterator[float]:
        run = self._run_file.run
        log = MemoryLog(run=run.name, data_partitions=1)
        context = make_context(log, run=run, stage="rollout", clock=SystemClock())
        episodes = open_episodes(self._environment, engine=engine, context=context)
        generator = Generator[int](engine, context=context, max_failures=1, episodes=episodes)
        try:
            for step in range(1, num_steps + 1):
                samples = _played(generator, [self._prompt(step, number) for number in range(run.groups_per_step)])
                batch = _batch(samples, step=step)
                yield float(np.mean([member.reward for member in batch.members]))
                engine.load(Version(lineage=1, step=step - 1), trainer.merged_state())  # then this step is one ahead
                trainer.step(batch)
        finally:
            episodes.close()

    def _trainer(self, settings: LearnerSettings) -> Trainer:
        return Trainer(settings, self._run_file.model, seed=self._run_file.run.seed)

    def _prompt(self, step: int, number: int) -> PromptGroup:
        run, prompts = self._run_file.run, self._run_file.prompts
        group = (step - 1) * run.groups_per_step + number
        item = self._source.item(group)
        return PromptGroup(
            run=run.name,
            group=group,
            group_size=run.group_size,
            text=item.text,
            sampling=prompts.sampling,
            seed=(run.seed + 1) * 1_000_003 + group * run.group_size,
            answer=item.answer,
            metadata=item.metadata,
            source=self._source.name,
            source_index=item.source_index,
            epoch=item.epoch,
            created_unix_ms=0,
        )


def _played(generator: Generator[int], prompts: list[PromptGroup]) -> list[tuple[Sample, ...]]:
    """The samples of each group."""
    for prompt in prompts:
        generator.add(prompt, ticket=prompt.group)
    deadline = Deadline.after(_STEP_LIMIT_S)
    found: dict[int, tuple[Sample, ...]] = {}
    while len(found) < len(prompts):
        deadline.check("the trajectories of a step")
        found |= {finished.ticket: tuple(finished.samples) for finished in generator.advance()}
    return [found[prompt.group] for prompt in prompts]


def _batch(groups: list[tuple[Sample, ...]], *, step: int) -> Batch:
    version = Version(lineage=1, step=max(0, step - 2))

    def member(sample: Sample) -> TrainMember:
        reward = float(unpack_f32(sample.step_rewards).sum())
        return TrainMember(sample=sample, reward=reward, rewards=(), version=version, age=min(1, step - 1))

    return Batch(
        step=step,
        groups=tuple(
            TrainGroup(group=samples[0].group, attempt=samples[0].attempt, members=tuple(map(member, samples)), age=1)
            for samples in groups
        ),
    )
