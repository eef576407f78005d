"""What a step does with a batch, laid out: rows in the order drawn, advantages, minibatches.

Role: everything of a step that needs no model.
Data in: a `Batch`, a `Recipe`. Data out: `Work`.
Invariants: the order of samples is drawn for the whole batch on every rank; a rank holds its share of it, and the spans
of minibatches say which rows of the share fall into each. Samples without any advantage are left out where the recipe
allows it.
Failure: `ValueError` when a group here has other members than the plan says, or advantages do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from consumers.learner.advantages import batch_advantages
from consumers.learner.algorithms import Recipe
from consumers.learner.batch import Batch
from consumers.learner.tensors import Rows, rows_of
from schemas.records import Sample


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is held here of a batch, in the order drawn for the whole of it."""

    rows: Rows | None  # None: nothing
    advantages: Sequence[Tensor]  # float32, per row: [completion tokens]
    constants: Tensor  # float32, [rows]: tokens that a row counts as; normaliser `constant`
    ids: Sequence[tuple[int, int]]  # per row: group and member
    spans: Sequence[tuple[int, int]]  # of rows, per minibatch

    def divisors(self, normaliser: str) -> list[float]:
        """What the losses of each minibatch are divided by, as far as its rows are held here: tokens, pairs or
        sequences; see `losses`."""
        rows = self.rows
        if rows is None:
            return [0.0] * len(self.spans)
        if normaliser == "token":
            return [float(rows.loss_mask[begin:end].sum().item()) for begin, end in self.spans]
        if normaliser == "pair":
            counted = torch.tensor([bool((each > 0).any()) for each in self.advantages])
        else:
            counted = (rows.loss_mask.sum(dim=1) > 0).cpu()
        return [float(counted[begin:end].sum().item()) for begin, end in self.spans]


def lay_out(batch: Batch, recipe: Recipe, *, generator: torch.Generator, device: torch.device) -> Work:
    """The work of one step. Draws from `generator` once, as many numbers as the whole batch has samples.

    Raises:
        ValueError: see the module.
    """
    members = list(batch.members)
    places, total = _places(batch)
    order = torch.randperm(total, generator=generator).tolist()
    advantages = list(batch_advantages(batch, recipe.advantage))
    sample_at = {
        place: number
        for number, place in enumerate(places)
        if not (recipe.skips_zeros and not advantages[number].any())
    }
    own = [sample_at[place] for place in order if place in sample_at]
    num_before = np.cumsum([0, *(place in sample_at for place in order)]).tolist()
    samples = [members[number].sample for number in own]
    references = [members[number].reference for number in own]
    constant = recipe.settings.constant_tokens
    return Work(
        rows=rows_of(samples, device=device, references=references) if own else None,
        advantages=[torch.from_numpy(advantages[number].copy()).to(device, torch.float32) for number in own],
        constants=torch.tensor([_constant(each, constant) for each in samples], dtype=torch.float32, device=device),
        ids=[(sample.group, sample.member) for sample in samples],
        spans=[(num_before[begin], num_before[end]) for begin, end in _minibatches(total, recipe.settings.minibatches)],
    )


def pair_margins(work: Work, recipe: Recipe, *, proximal: Sequence[Tensor]) -> list[Tensor]:
    """The margin of each row's pair at the present weights, repeated for its completion tokens; see `losses.dpo_loss`.

    Where no reference model scores, the policy that made the samples stands for it.

    Args:
        proximal: per row, [completion tokens].
    """
    rows = work.rows
    if rows is None:
        return []
    against = rows.behaviour_logprobs if rows.reference_logprobs is None else rows.reference_logprobs
    margins: dict[int, float] = {}
    for row, (logprobs, advantages, (group, _)) in enumerate(zip(proximal, work.advantages, work.ids, strict=True)):
        columns = rows.completion[row]
        gain = ((logprobs - against[row][columns]) * rows.loss_mask[row][columns] * advantages.sign()).double()
        margins[group] = margins.get(group, 0.0) + recipe.settings.beta * float(gain.sum().item())
    return [torch.full_like(each, margins[group]) for each, (group, _) in zip(proximal, work.ids, strict=True)]


def _constant(sample: Sample, constant: int | None) -> int:
    return max(1, sample.sampling.max_tokens) if constant is None else constant


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


def _minibatches(num_rows: int, count: int) -> Iterator[tuple[int, int]]:
    """`count` spans of rows whose sizes differ by at most one; fewer when there are fewer rows."""
    edges = np.linspace(0, num_rows, min(count, num_rows) + 1).astype(int).tolist()
    yield from pairwise(edges)
