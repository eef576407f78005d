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
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from consumers.learner.algorithms import recipe_of
from consumers.learner.batch import Batch
from consumers.learner.checkpoint import digest_of_tensors, optimizer_tensors
from consumers.learner.forward import Forward, Scores, check_packing
from consumers.learner.lora import attach, base_of, merged_state, trained_state
from consumers.learner.losses import TokenTerms, cross_entropy_loss
from consumers.learner.schedules import learning_rate
from consumers.learner.settings import LearnerSettings
from consumers.learner.step_stats import StepStats, Sums
from consumers.learner.team import Team
from consumers.learner.tensors import Rows, micro_batches
from consumers.learner.work import Work, lay_out, pair_margins
from pipeline.engines.model_dir import load_model, load_tokenizer, named_state, parse_device
from pipeline.settings import ModelSettings
from pipeline.weights.adapters import Adapting
from pipeline.weights.state import stream_digest
from schemas.errors import TrainingError

Meanwhile: TypeAlias = Callable[[bool], None]  # other work of the same thread; True: the weights are about to change


class Trainer:
    """Model, optimizer and generator.

    Raises:
        EngineError: the model directory cannot be loaded.
        PluginError, SettingsError: the algorithm's parts cannot be had, or do not fit together.
    """

    def __init__(self, settings: LearnerSettings, model: ModelSettings, *, seed: int) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._recipe = recipe_of(settings.algorithm, settings.loss, advantage=settings.advantage)
        self._seed = seed
        self.device = parse_device(model.device)
        is_mixed = settings.compute_dtype == "bfloat16"
        dtype = "float32" if is_mixed else model.dtype
        self.model: PreTrainedModel = load_model(model.path, device=model.device, dtype=dtype)
        if settings.lora is not None:
            attach(self.model, settings.lora, seed=seed)
        self._forward = Forward(self.model, packing=settings.packing, bfloat16=is_mixed)
        if settings.packing:
            check_packing(self.model)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(model.path)
        self.model.train()
        self.generator = torch.Generator().manual_seed(seed)
        self.team: Team | None = None  # set once, before the first step; None: this process trains alone
        self._meanwhile: Meanwhile = _nothing
        optimizer = settings.optimizer
        self.optimizer = torch.optim.AdamW(
            self.trained_parameters,
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """All of the model's, or its adapters."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @cached_property
    def base_digest(self) -> str:
        """Of the frozen base of adapters, in the dtypes that it is held in; empty: the whole model is trained."""
        return base_of(self.model, wire_dtype=None).digest if self._settings.lora is not None else ""

    def adapting(self, *, wire_dtype: str | None) -> Adapting | None:
        """What manifests say of the adapters; None: the whole model is trained.

        Args:
            wire_dtype: "BF16", "F16", "F32", which engines hold the base in; None: as the learner does.
        """
        lora = self._settings.lora
        return None if lora is None else Adapting(base=base_of(self.model, wire_dtype=wire_dtype), scale=lora.scale)

    def merged_state(self) -> dict[str, Tensor]:
        """The whole model as engines compute with it, without tied names."""
        return merged_state(self.model, self._settings.lora)

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and completion the model was made for."""
        return int(self.model.config.max_position_embeddings)

    @property
    def vocab_size(self) -> int:
        """Token ids the model knows: 0 .. vocab_size - 1."""
        return int(self.model.config.vocab_size)

    def step(self, batch: Batch, *, meanwhile: Meanwhile | None = None) -> StepStats:
        """Train on one batch.

        Args:
            meanwhile: called with False after each micro-batch, and with True before the first change of the weights.

        Raises:
            TrainingError: loss or gradient is not finite; the weights are as before the failing minibatch.
            ValueError: the advantages of a plug-in are not finite, or of another shape.
        """
        self._meanwhile = _nothing if meanwhile is None else meanwhile
        self._seed_layers("step", batch.step)
        work = lay_out(batch, self._recipe, generator=self.generator, device=self.device)
        rate = learning_rate(self._settings.optimizer, batch.step)
        self._set_learning_rate(rate)
        proximal = self._proximal(work.rows) if self._settings.loss.minibatches > 1 or self._recipe.has_pairs else None
        margins = pair_margins(work, self._recipe, proximal=proximal or []) if self._recipe.has_pairs else None
        sums = Sums([member.reward for member in batch.members], keep_gaps=self._settings.keep_gaps)
        grad_norm, loss = 0.0, 0.0
        for span, divisor in zip(work.spans, self._divisors(work), strict=True):
            part = _Part(work=work, proximal=proximal, margins=margins, span=span, divisor=divisor)
            part_loss = self._sum_up(self._accumulate(part, sums))
            self._meanwhile(True)
            grad_norm = max(grad_norm, self._apply(part_loss))
            loss += part_loss / self._settings.loss.minibatches
        if self.team is not None:
            sums.values = self.team.sum(sums.values)
            if self.team.is_compared(batch.step):
                self.team.compare(self.digest(), step=batch.step)
        return sums.stats(loss=loss, grad_norm=grad_norm, learning_rate=rate, team=self.team)

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
            logprobs = self._forward.logprobs(own)
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
        """Digest of everything a step changes: trained weights, optimizer and generator; 32 bytes."""
        own, _ = trained_state(self.model)
        return digest_of_tensors({**own, **optimizer_tensors(self.optimizer), "generator": self.generator.get_state()})

    def state_digest(self, *, wire_dtype: str | None) -> str:
        """Digest of the weights as a manifest has it, cast to `wire_dtype` ("BF16", "F16", "F32"; None: as they are);
        adapters are never cast.

        Raises:
            WeightsError: a dtype cannot travel.
        """
        own, ties = trained_state(self.model)
        return stream_digest(own, ties=ties, wire_dtype=wire_dtype if self._settings.lora is None else None)

    def initial_digest(self) -> str:
        """Digest of all weights, a frozen base included, as they are.

        Raises:
            WeightsError: a dtype cannot travel.
        """
        own, ties = named_state(self.model)
        return stream_digest(own, ties=ties, wire_dtype=None)

    def _seed_layers(self, kind: str, number: int) -> None:
        """Layers with dropout draw from torch's own generators: what they draw is a function of the step, so a restart
        need not put it back."""
        rank = 0 if self.team is None else self.team.rank
        key = blake3(f"{self._seed}/{kind}/{number}/{rank}".encode()).digest(length=8)
        torch.manual_seed(int.from_bytes(key, "little") >> 1)

    def _divisors(self, work: Work) -> list[int]:
        """What each minibatch is divided by, over all ranks: tokens, sequences or pairs."""
        counts = work.divisors(self._recipe.normaliser)
        if self.team is not None:
            counts = self.team.sum(counts)
        return [max(1, int(count)) for count in counts]

    def _sum_up(self, loss: float) -> float:
        """Loss and gradients of a minibatch over all ranks."""
        if self.team is None:
            return loss
        loss = self.team.sum([loss])[0]
        self.team.sum_gradients(self.trained_parameters)
        return loss

    def _proximal(self, rows: Rows | None) -> list[Tensor]:
        """Log-probabilities before the first minibatch, per row."""
        out: list[Tensor] = []
        if rows is None:
            return out
        with torch.no_grad():
            for begin, end in self._micro_batches(rows):
                part = rows.slice(begin, end)
                values = self._forward.logprobs(part)
                out.extend(torch.split(values, part.completion.sum(dim=1).tolist()))
        return out

    def _accumulate(self, part: _Part, sums: Sums) -> float:
        """Gradients of one minibatch, in micro-batches; returns its loss."""
        total = 0.0
        if part.work.rows is None or part.span[0] == part.span[1]:
            return total
        rows = part.work.rows.slice(*part.span)
        for begin, end in self._micro_batches(rows):
            micro, first = rows.slice(begin, end), part.span[0] + begin
            scores = self._forward.scores(micro)
            terms = _terms(micro, part, scores=scores, first=first)
            constants = part.work.constants[first : first + terms.num_rows]
            found = self._recipe.objective(terms, constants=constants)
            value = found.total / part.divisor
            value.backward()  # type: ignore[no-untyped-call]
            total += value.item()
            ids = part.work.ids[first : first + terms.num_rows]
            sums.add(terms, found.loss, entropy=scores.entropy, kl=found.kl, ids=ids)
            self._meanwhile(False)
        return total

    def _micro_batches(self, rows: Rows) -> Iterator[tuple[int, int]]:
        settings = self._settings
        return micro_batches(rows, max_tokens=settings.micro_batch_tokens, packing=settings.packing)

    def _apply(self, loss: float) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.trained_parameters, self._settings.optimizer.max_grad_norm)
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

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One minibatch of a step."""

    work: Work
    proximal: Sequence[Tensor] | None  # per row; None: the new log-probabilities are the proximal ones
    margins: Sequence[Tensor] | None  # per row; None: the algorithm has no pairs
    span: tuple[int, int]
    divisor: int  # of the minibatch, over all ranks


def _terms(micro: Rows, part: _Part, *, scores: Scores, first: int) -> TokenTerms:
    """Terms of a micro-batch whose first row is row `first` of the work."""
    lengths = micro.completion.sum(dim=1)
    last = first + len(lengths)
    new, reference = scores.logprobs, micro.reference_logprobs
    return TokenTerms(
        new_logprobs=new,
        proximal_logprobs=new.detach() if part.proximal is None else torch.cat(list(part.proximal[first:last])),
        behaviour_logprobs=micro.behaviour_logprobs[micro.completion],
        advantages=torch.cat(list(part.work.advantages[first:last])),
        mask=micro.loss_mask[micro.completion],
        rows=torch.arange(len(lengths), device=new.device).repeat_interleave(lengths),
        reference_logprobs=None if reference is None else reference[micro.completion],
        margins=None if part.margins is None else torch.cat(list(part.margins[first:last])),
    )


def _nothing(_: bool) -> None:
    """No work beside the step."""


def _share(num_rows: int, team: Team | None) -> tuple[int, int]:
    """The rows of a rank; their numbers differ by at most one."""
    if team is None:
        return 0, num_rows
    return num_rows * team.rank // team.num_ranks, num_rows * (team.rank + 1) // team.num_ranks
