"""The model in training: one batch in, one optimizer step done.

Role: owns model, optimizer and the random generator of the learner; knows nothing of topics.
Data in: a `Batch` (consumers.learner.batch), or demonstration rows. Data out: numbers about the step.
Invariants: one call of `step` is one optimizer schedule step and one policy version, whatever its minibatches; the
same state and batch give the same weights (one thread count, CPU). Nothing non-finite is applied: such a step raises.
With a team every rank trains its share of a batch: the order of samples is drawn for the whole batch on every rank,
losses are divided by the tokens of the whole minibatch, gradients are summed, and the state stays the same on all.
Failure: `TrainingError` with what was not finite; the process restarts from its checkpoint. With a team also
`RankLost`, `RanksDiverged`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from consumers.learner.advantages import batch_advantages
from consumers.learner.batch import Batch
from consumers.learner.checkpoint import digest_of_tensors, optimizer_tensors
from consumers.learner.losses import LossTerms, TokenTerms, cross_entropy_loss, grpo_loss
from consumers.learner.settings import LearnerSettings
from consumers.learner.team import Team
from consumers.learner.tensors import Rows, completion_logprobs, micro_batches, rows_of
from pipeline.engines.model_dir import load_model, load_tokenizer, named_state, parse_device
from pipeline.settings import ModelSettings
from pipeline.weights.state import stream_digest
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
        self._seed = seed
        self.device = parse_device(model.device)
        self.model: PreTrainedModel = load_model(model.path, device=model.device, dtype=model.dtype)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(model.path)
        self.model.train()
        self.generator = torch.Generator().manual_seed(seed)
        self.team: Team | None = None  # set once, before the first step; None: this process trains alone
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
        self._seed_layers("step", batch.step)
        work = self._prepare(batch)
        self._set_learning_rate(self._rate(batch.step))
        proximal = self._proximal(work.rows) if self._settings.loss.minibatches > 1 else None
        sums, grad_norm, loss = _Sums([member.reward for member in batch.members]), 0.0, 0.0
        for span, num_tokens in zip(work.spans, self._num_tokens(work), strict=True):
            part = _Part(work=work, proximal=proximal, span=span, num_tokens=num_tokens)
            part_loss = self._sum_up(self._accumulate(part, sums))
            self._meanwhile(True)
            grad_norm = max(grad_norm, self._apply(part_loss))
            loss += part_loss / self._settings.loss.minibatches
        if self.team is not None:
            sums.values = self.team.sum(sums.values)
            if self.team.is_compared(batch.step):
                self.team.compare(self.digest(), step=batch.step)
        return sums.stats(loss=loss, grad_norm=grad_norm)

    def clone(self, rows: Rows, number: int) -> float:
        """Behaviour-cloning step `number` (from 0) on demonstration rows, the same on all ranks; the loss in nats per
        token.

        Raises:
            TrainingError: loss or gradient is not finite.
        """
        self._seed_layers("clone", number)
        self._set_learning_rate(self._settings.cloning.learning_rate)
        num_tokens = rows.loss_mask[rows.completion].sum()
        begin, end = _share(len(rows.input_ids), self.team)
        loss = 0.0
        if begin < end:
            own = rows if self.team is None else rows.slice(begin, end)
            logprobs = completion_logprobs(self.model, own)
            value = cross_entropy_loss(logprobs, mask=own.loss_mask[own.completion], num_tokens=num_tokens)
            value.backward()  # type: ignore[no-untyped-call]
            loss = float(value.item())
        loss = self._sum_up(loss)
        self._apply(loss)
        return loss

    def reset_optimizer(self) -> None:
        """Forget the moments, so that RL does not begin with those of cloning."""
        self.optimizer.state.clear()

    def digest(self) -> bytes:
        """Digest of everything a step depends on: model, optimizer and generator; 32 bytes."""
        own, _ = named_state(self.model)
        return digest_of_tensors({**own, **optimizer_tensors(self.optimizer), "generator": self.generator.get_state()})

    def state_digest(self, *, wire_dtype: str | None) -> str:
        """Digest of the weights as a manifest has it, cast to `wire_dtype` ("BF16", "F16", "F32"; None: as they are).

        Raises:
            WeightsError: a dtype cannot travel.
        """
        own, ties = named_state(self.model)
        return stream_digest(own, ties=ties, wire_dtype=wire_dtype)

    def _seed_layers(self, kind: str, number: int) -> None:
        """Layers with dropout draw from torch's own generators: what they draw is a function of the step, so a restart
        need not put it back."""
        rank = 0 if self.team is None else self.team.rank
        key = blake3(f"{self._seed}/{kind}/{number}/{rank}".encode()).digest(length=8)
        torch.manual_seed(int.from_bytes(key, "little") >> 1)

    def _prepare(self, batch: Batch) -> _Work:
        samples = [member.sample for member in batch.members]
        places, total = _places(batch)
        order = torch.randperm(total, generator=self.generator).tolist()
        sample_at = {place: number for number, place in enumerate(places)}
        own = [sample_at[place] for place in order if place in sample_at]
        num_before = np.cumsum([0, *(place in sample_at for place in order)]).tolist()
        spans = _minibatches(total, self._settings.loss.minibatches)
        advantages = batch_advantages(batch, scale_by_std=self._settings.loss.scale_by_std)[own]
        return _Work(
            rows=rows_of([samples[number] for number in own], device=self.device) if own else None,
            advantages=torch.from_numpy(advantages).to(self.device, torch.float32),
            spans=[(num_before[begin], num_before[end]) for begin, end in spans],
        )

    def _num_tokens(self, work: _Work) -> list[int]:
        """Tokens that each minibatch is divided by, over all ranks."""
        rows = work.rows
        counts = [0.0 if rows is None else float(rows.loss_mask[begin:end].sum().item()) for begin, end in work.spans]
        if self.team is not None:
            counts = self.team.sum(counts)
        return [max(1, int(count)) for count in counts]

    def _sum_up(self, loss: float) -> float:
        """Loss and gradients of a minibatch over all ranks."""
        if self.team is None:
            return loss
        loss = self.team.sum([loss])[0]
        self.team.sum_gradients(list(self.model.parameters()))
        return loss

    def _proximal(self, rows: Rows | None) -> list[Tensor]:
        """Log-probabilities before the first minibatch, per row."""
        out: list[Tensor] = []
        if rows is None:
            return out
        with torch.no_grad():
            for begin, end in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
                part = rows.slice(begin, end)
                values = completion_logprobs(self.model, part)
                out.extend(torch.split(values, part.completion.sum(dim=1).tolist()))
        return out

    def _accumulate(self, part: _Part, sums: _Sums) -> float:
        """Gradients of one minibatch, in micro-batches; returns its loss."""
        total = 0.0
        if part.work.rows is None or part.span[0] == part.span[1]:
            return total
        rows = part.work.rows.slice(*part.span)
        for begin, end in micro_batches(rows, max_tokens=self._settings.micro_batch_tokens):
            micro = rows.slice(begin, end)
            terms = self._terms(micro, part, first=part.span[0] + begin)
            loss = grpo_loss(
                terms,
                num_tokens=part.num_tokens,
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
            advantages=part.work.advantages[first:last].repeat_interleave(lengths),
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
class _Work:
    """What is held here of a batch, in the order drawn for the whole of it."""

    rows: Rows | None  # None: nothing
    advantages: Tensor  # [rows]
    spans: Sequence[tuple[int, int]]  # of rows, per minibatch


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One minibatch of a step."""

    work: _Work
    proximal: Sequence[Tensor] | None  # per row; None: the new log-probabilities are the proximal ones
    span: tuple[int, int]
    num_tokens: int  # of the minibatch, over all ranks


class _Sums:
    """Running sums over a step; `values` may be replaced by their sums over all ranks."""

    def __init__(self, rewards: Sequence[float]) -> None:
        self.values = [0.0, 0.0, 0.0, 0.0, float(sum(rewards)), float(len(rewards))]

    def add(self, loss: LossTerms, *, num_tokens: int) -> None:
        more = (num_tokens, loss.clipped_tokens.item(), loss.capped_tokens.item(), loss.mismatch_sum.item())
        self.values = [*(old + new for old, new in zip(self.values, more, strict=False)), *self.values[len(more) :]]

    def stats(self, *, loss: float, grad_norm: float) -> StepStats:
        num_tokens, clipped, capped, mismatch, rewards, num_samples = self.values
        count = max(1.0, num_tokens)
        return StepStats(
            loss=loss,
            grad_norm=grad_norm,
            reward_mean=rewards / max(1.0, num_samples),
            num_tokens=int(num_tokens),
            clipped_share=clipped / count,
            capped_share=capped / count,
            mismatch_mean=mismatch / count,
        )


def _nothing(_: bool) -> None:
    """No work beside the step."""


def _places(batch: Batch) -> tuple[list[int], int]:
    """Where the samples held here stand in the whole batch, and how many it has.

    Raises:
        ValueError: a group here has other members than the plan says.
    """
    if batch.plan is None:
        return list(range(batch.num_samples)), batch.num_samples
    held = {group.group: len(group.members) for group in batch.groups}
    places: list[int] = []
    begin = 0
    for planned in batch.plan.groups:
        count = len(planned.members)
        if held.get(planned.group, count) != count:
            raise ValueError(f"group {planned.group} has {held[planned.group]} members, the plan says {count}")
        places += range(begin, begin + count) if planned.group in held else ()
        begin += count
    return places, begin


def _share(num_rows: int, team: Team | None) -> tuple[int, int]:
    """The rows of a rank; their numbers differ by at most one."""
    if team is None:
        return 0, num_rows
    return num_rows * team.rank // team.num_ranks, num_rows * (team.rank + 1) // team.num_ranks


def _minibatches(num_rows: int, count: int) -> Iterator[tuple[int, int]]:
    """`count` spans of rows whose sizes differ by at most one; fewer when there are fewer rows."""
    edges = np.linspace(0, num_rows, min(count, num_rows) + 1).astype(int).tolist()
    yield from pairwise(edges)
