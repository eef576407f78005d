"""The demo task in one process: sample, score, train, without a log, for as many steps as asked.

Role: what `bench algorithms` lets each algorithm learn; model, trainer, source and settings are the demo's own.
Data in: an algorithm. Data out: the mean sampled reward of every step.
Invariants: every algorithm begins with the same cloned weights and sees the same prompts; samples are drawn by the
weights of one step before (staleness 1), with log-probabilities of their own, as in a run.
Failure: `TrainingError` when a step is not finite.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from consumers.learner.batch import Batch, TrainGroup, TrainMember
from consumers.learner.cloning import Demonstrations
from consumers.learner.forward import Forward
from consumers.learner.lora_settings import LoraSettings
from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.settings import LearnerSettings, OptimizerSettings
from consumers.learner.tensors import rows_of
from consumers.learner.trainer import Trainer
from ops.run_file import RunFile
from pipeline.engines.model_dir import load_model
from pipeline.sources import PromptItem, open_source
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import Sample, SamplingParams, Version, VersionRun

VERSION = Version(lineage=1, step=0)
Serve: TypeAlias = Callable[[Trainer, int], Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of the benchmark."""

    name: str
    algorithm: AlgorithmName
    loss: LossSettings
    learning_rate: float = 5e-4
    has_reference: bool = False
    note: str = ""
    lora: LoraSettings | None = None  # None: the whole model is trained


class Playground:
    """Clones once; `learn` begins from there every time.

    Args:
        run_file: the demo's, with a model directory that exists.
    """

    def __init__(self, run_file: RunFile) -> None:
        self._run_file = run_file
        self._source = open_source(run_file.prompts.source, seed=run_file.run.seed)
        trainer = self._trainer(run_file.learner)
        cloning = run_file.learner.cloning
        demonstrations = Demonstrations.open(cloning, trainer=trainer, seed=run_file.run.seed)
        for number in range(cloning.num_steps):
            trainer.clone(demonstrations.batch(number), number)
        self._start = copy.deepcopy(trainer.model.state_dict())

    def learn(self, variant: Variant, *, num_steps: int, serve: Serve | None = None) -> Iterator[float]:
        """Train; gives each step's mean reward.

        Args:
            serve: from the trainer after so many steps to the weights that samples are drawn with; None: its own.

        Raises:
            TrainingError: a step is not finite.
        """
        settings = self._run_file.learner.model_copy(
            update={
                "algorithm": variant.algorithm,
                "loss": variant.loss,
                "optimizer": OptimizerSettings(learning_rate=variant.learning_rate),
                "lora": variant.lora,
            }
        )
        trainer = self._trainer(settings)
        trainer.model.load_state_dict(self._start, strict=variant.lora is None)
        trainer.model.tie_weights()
        sampler = load_model(self._run_file.model.path, device="cpu", dtype=self._run_file.model.dtype)
        sampler.load_state_dict(self._start)
        reference = Forward(copy.deepcopy(trainer.model)) if variant.has_reference else None
        generator = torch.Generator().manual_seed(self._run_file.run.seed)
        for step in range(1, num_steps + 1):
            batch = self._batch(trainer, sampler, step=step, reference=reference, generator=generator)
            yield float(np.mean([member.reward for member in batch.members]))
            state = trainer.merged_state() if serve is None else serve(trainer, step - 1)
            sampler.load_state_dict(state, strict=False)  # names that are tied are left out
            trainer.step(batch)

    def _trainer(self, settings: LearnerSettings) -> Trainer:
        return Trainer(settings, self._run_file.model, seed=self._run_file.run.seed)

    def _batch(
        self,
        trainer: Trainer,
        sampler: PreTrainedModel,
        *,
        step: int,
        reference: Forward | None,
        generator: torch.Generator,
    ) -> Batch:
        run = self._run_file.run
        begin = (step - 1) * run.groups_per_step
        items = [self._source.item(begin + number) for number in range(run.groups_per_step)]
        drawn = _draw(sampler, _Wanted.of(items, trainer, size=run.group_size), generator=generator)
        samples = [
            _sample(drawn, row, group=begin + row // run.group_size, member=row % run.group_size)
            for row in range(len(items) * run.group_size)
        ]
        scores: list[bytes | None] = [None] * len(samples) if reference is None else _scores(reference, samples)
        members = [
            TrainMember(
                sample=sample,
                reward=_reward(trainer, sample, item=items[number // run.group_size]),
                rewards=(),
                version=VERSION,
                age=min(1, step - 1),
                reference=scores[number],
            )
            for number, sample in enumerate(samples)
        ]
        size = run.group_size
        groups = (
            TrainGroup(group=begin + n, attempt="a", members=tuple(members[n * size : (n + 1) * size]), age=1)
            for n in range(len(items))
        )
        return Batch(step=step, groups=tuple(groups))


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Prompts of one length after left-padding."""

    prompts: list[list[int]]
    max_tokens: int
    end: int

    @classmethod
    def of(cls, items: list[PromptItem], trainer: Trainer, *, size: int) -> _Wanted:
        tokenizer = trainer.tokenizer
        encoded = [tokenizer.encode(item.text or "", add_special_tokens=True) for item in items]
        return cls(
            prompts=[each for each in encoded for _ in range(size)], max_tokens=4, end=int(tokenizer.eos_token_id)
        )


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Completions as they were drawn."""

    prompts: list[list[int]]
    tokens: Tensor  # int64, [rows, most tokens]
    logprobs: Tensor  # float32, the same
    lengths: list[int]


@torch.no_grad()
def _draw(model: PreTrainedModel, wanted: _Wanted, *, generator: torch.Generator) -> _Drawn:
    """Sample at temperature 1; a row ends with the end token. Rows are left-padded and nothing is cached: prompts of
    the demo have a handful of tokens."""
    width = max(len(prompt) for prompt in wanted.prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in wanted.prompts])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in wanted.prompts])
    logprobs = torch.zeros(len(ids), wanted.max_tokens)
    for column in range(wanted.max_tokens):
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=seen, position_ids=positions, use_cache=False).logits[:, -1]
        every = torch.log_softmax(logits.float(), dim=-1)
        token = torch.multinomial(every.exp(), 1, generator=generator)
        logprobs[:, column] = every.gather(1, token).squeeze(1)
        ids = torch.cat([ids, token], dim=1)
        seen = torch.cat([seen, torch.ones_like(token)], dim=1)
    tokens = ids[:, width:]
    ends = (tokens == wanted.end).int()
    lengths = torch.where(ends.any(dim=1), ends.argmax(dim=1) + 1, wanted.max_tokens)
    return _Drawn(prompts=wanted.prompts, tokens=tokens, logprobs=logprobs, lengths=lengths.tolist())


def _sample(drawn: _Drawn, row: int, *, group: int, member: int) -> Sample:
    count = drawn.lengths[row]
    return Sample(
        run="bench",
        group=group,
        member=member,
        attempt="a",
        producer="",
        prompt_tokens=pack_i32(drawn.prompts[row]),
        completion_tokens=pack_i32(drawn.tokens[row, :count].numpy().astype(np.int32)),
        logprobs=pack_f32(drawn.logprobs[row, :count].numpy()),
        loss_mask=pack_u8(np.ones(count, np.uint8)),
        version_runs=(VersionRun(num_tokens=count, version=VERSION),),
        sampling=SamplingParams(max_tokens=drawn.tokens.shape[1]),
        seed=0,
        started_unix_ms=0,
        finished_unix_ms=0,
    )


@torch.no_grad()
def _scores(reference: Forward, samples: list[Sample]) -> list[bytes | None]:
    rows = rows_of(samples, device=torch.device("cpu"))
    values = torch.split(reference.logprobs(rows), rows.completion.sum(dim=1).tolist())
    return [pack_f32(each.numpy()) for each in values]


def _reward(trainer: Trainer, sample: Sample, *, item: PromptItem) -> float:
    """1 for the right sum, else 0."""
    tokens = np.frombuffer(sample.completion_tokens, "<i4").tolist()
    text = str(trainer.tokenizer.decode(tokens, skip_special_tokens=True)).strip()
    return float(text == (item.answer or "").strip())


def demo_settings(folder: Path) -> RunFile:
    """The demo's run file, with its model in `folder`."""
    from importlib.resources import as_file, files  # noqa: PLC0415

    from ops.run_file import load_run_file  # noqa: PLC0415

    with as_file(files("ops") / "demo.toml") as path:
        return load_run_file(path, overrides=[f"model.path={folder / 'model'}"])
