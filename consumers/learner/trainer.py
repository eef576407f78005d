"""The model in training: one batch in, one optimizer step done.

Role: owns model, optimizer and the random generator of the learner; knows nothing of topics.
Data in: a `Batch` (consumers.learner.batch), or demonstration rows. Data out: numbers about the step.
Invariants: one call of `step` is one optimizer schedule step and one policy version, whatever its minibatches; the
same state and batch give the same weights (one thread count, CPU). Nothing non-finite is applied: such a step raises.
Failure: `TrainingError` with what was not finite; the process restarts from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from consumers.learner.advantages import batch_advantages
from consumers.learner.batch import Batch
from consumers.learner.losses import LossTerms, TokenTerms, cross_entropy_loss, grpo_loss
from consumers.learner.settings import LearnerSettings
from consumers.learner.tensors import Rows, completion_logprobs, micro_batches, rows_of
from pipeline.engines.model_dir import load_model, load_tokenizer
from pipeline.settings import ModelSettings
from schemas.errors import TrainingError

Meanwhile: TypeAlias = Callable[[bool], None]  # other work of the same thread; True: the weights are about to change


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What a step was like. Means are over trained tokens unless said otherwise."""

    loss: float
    grad_norm: float  # before clipping, L2
    reward_mean: float  # over samples
    num_tokens: int
    clipped_share: float
    capped_share: float
    mismatch_mean: float  # |proximal - behaviour|, nats


class Trainer:
    """Model, optimizer and generator.

    Raises:
        EngineError: the model directory cannot be loaded.
    """

    def __init__(self, settings: LearnerSettings, model: ModelSettings, *, seed: int) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self.device = torch.device(model.device)
        self.model: PreTrainedModel = load_model(model.path, device=model.device, dtype=model.dtype)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(model.path)
        self.model.train()
        self.generator = torch.Generator().manual_seed(seed)
        self._meanwhile: Meanwhile = _nothing
        optimizer = settings.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and completion the model was made for."""
        return int(self.model.config.max_position_embeddings)

    @property
    def vocab_size(self) -> int:
        """Token ids the model knows: 0 .. vocab_size - 1."""
        return int(self.model.config.vocab_size)

    def step(self, batch: Batch, *, meanwhile: Meanwhile | None = None) -> StepStats:
        """Train on one batch with GRPO.

        Args:
            meanwhile: called with False after each micro-batch, and with True before the first change of the weights.

        Raises:
            TrainingError: loss or gradient is not finite; the weights are as before the failing minibatch.
        """
        self._meanwhile = _nothing if meanwhile is None else meanwhile
        rows, advantages = self._prepare(batch)
        self._set_learning_rate(self._rate(batch.step))
        proximal = self._proximal(rows) if self._settings.loss.minibatches > 1 else None
        sums, grad_norm, loss = _Sums(), 0.0, 0.0
        for span in _minibatches(len(advantages), self._settings.loss.minibatches):
            part = _Part(rows=rows, advantages=advantages, proximal=proximal, span=span)
            part_loss = self._accumulate(part, sums)
            self._meanwhile(True)
            grad_norm = max(grad_norm, self._apply(part_loss))
            loss += part_loss / self._settings.loss.minibatches
        rewards = [member.reward for group in batch.groups for member in group.members]
        return sums.stats(loss=loss, grad_norm=grad_norm, reward_mean=float(np.mean(rewards)))

    def clone(self, rows: Rows) -> float:
        """One behaviour-cloning step on demonstration rows; returns the loss in nats per token.

        Raises:
            TrainingError: loss or gradient is not finite.
        """
        self._set_learning_rate(self._settings.cloning.learning_rate)
        logprobs = completion_logprobs(self.model, rows)
        loss = cross_entropy_loss(logprobs, mask=rows.loss_mask[rows.completion])
        loss.backward()  # type: ignore[no-untyped-call]
        self._apply(loss.item())
        return float(loss.item())

    def reset_optimizer(self) -> None:
        """Forget the moments, so that RL does not begin with those of cloning."""
        self.optimizer.state.clear()

    def _prepare(self, batch: Batch) -> tuple[Rows, Tensor]:
        samples = [member.sample for group in batch.groups for member in group.members]
        advantages = batch_advantages(batch, scale_by_std=self._settings.loss.scale_by_std)
        order = torch.randperm(len(samples), generator=self.generator).tolist()
        rows = rows_of([samples[i] for i in order], device=self.device)
        return rows, torch.from_numpy(advantages[order]).to(self.device, torch.float32)

    def _proximal(self, rows: Rows) -> list[Tensor]:
        """Log-probabilities before the first minibatch, per row."""
        out: list[Tensor] = []
        with torch.no_grad():
            for begin, end in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
                part = rows.slice(begin, end)
                values = completion_logprobs(self.model, part)
                out.extend(torch.split(values, part.completion.sum(dim=1).tolist()))
        return out

    def _accumulate(self, part: _Part, sums: _Sums) -> float:
        """Gradients of one minibatch, in micro-batches; returns its loss."""
        rows = part.rows.slice(*part.span)
        num_tokens = max(1, int(rows.loss_mask.sum().item()))
        total = 0.0
        for begin, end in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            micro = rows.slice(begin, end)
            terms = self._terms(micro, part, first=part.span[0] + begin)
            loss = grpo_loss(
                terms,
                num_tokens=num_tokens,
                clip_low=self._settings.loss.clip_low,
                clip_high=self._settings.loss.clip_high,
                importance_cap=self._settings.loss.importance_cap,
            )
            loss.loss.backward()  # type: ignore[no-untyped-call]
            total += loss.loss.item()
            sums.add(loss, num_tokens=int(terms.mask.sum().item()))
            self._meanwhile(False)
        return total

    def _terms(self, micro: Rows, part: _Part, *, first: int) -> TokenTerms:
        new = completion_logprobs(self.model, micro)
        lengths = micro.completion.sum(dim=1)
        last = first + len(lengths)
        proximal = new.detach() if part.proximal is None else torch.cat(list(part.proximal[first:last]))
        return TokenTerms(
            new_logprobs=new,
            proximal_logprobs=proximal,
            behaviour_logprobs=micro.behaviour_logprobs[micro.completion],
            advantages=part.advantages[first:last].repeat_interleave(lengths),
            mask=micro.loss_mask[micro.completion],
        )

    def _apply(self, loss: float) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._settings.optimizer.max_grad_norm)
        value = float(norm.item())
        if not (np.isfinite(value) and np.isfinite(loss)):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"loss {loss} with gradient norm {value} is not finite; the step was not applied",
                hint="lower learner.optimizer.learning_rate, or look at the batch with `rlweave replay`",
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value

    def _rate(self, step: int) -> float:
        """Learning rate of the step that produces version `step` (1 is the first)."""
        optimizer = self._settings.optimizer
        return optimizer.learning_rate * min(1.0, step / (optimizer.warmup_steps + 1))

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One minibatch of a step."""

    rows: Rows  # of the whole batch
    advantages: Tensor  # [rows]
    proximal: Sequence[Tensor] | None  # per row; None: the new log-probabilities are the proximal ones
    span: tuple[int, int]


class _Sums:
    """Running sums over the tokens of a step."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._clipped = 0.0
        self._capped = 0.0
        self._mismatch = 0.0

    def add(self, loss: LossTerms, *, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._clipped += loss.clipped_tokens.item()
        self._capped += loss.capped_tokens.item()
        self._mismatch += loss.mismatch_sum.item()

    def stats(self, *, loss: float, grad_norm: float, reward_mean: float) -> StepStats:
        count = max(1, self._num_tokens)
        return StepStats(
            loss=loss,
            grad_norm=grad_norm,
            reward_mean=reward_mean,
            num_tokens=self._num_tokens,
            clipped_share=self._clipped / count,
            capped_share=self._capped / count,
            mismatch_mean=self._mismatch / count,
        )


def _nothing(_: bool) -> None:
    """No work beside the step."""


def _minibatches(num_rows: int, count: int) -> Iterator[tuple[int, int]]:
    """`count` spans of rows whose sizes differ by at most one; fewer when there are fewer rows."""
    edges = np.linspace(0, num_rows, min(count, num_rows) + 1).astype(int).tolist()
    yield from pairwise(edges)
