"""The real functions on a `Case`, and how far they are from the float64 reference.

Role: advantages, layout, loss, normaliser and gradient as the trainer composes them, in float32, without a model.
Data in: an algorithm and a case. Data out: largest relative errors.
Failure: none of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from consumers.learner.algorithms import ALGORITHMS, recipe_of
from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.losses import TokenTerms
from consumers.learner.work import lay_out, pair_margins
from ops.bench.algorithms import reference
from ops.bench.algorithms.case import Case, Floats, Member

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Largest relative errors against float64."""

    loss: float  # |ours - reference|, relative to the sum of the absolute values of its terms
    gradient: float  # over all tokens, relative to the largest derivative


def names() -> list[AlgorithmName]:
    """All algorithms."""
    return list(ALGORITHMS)


def compare(algorithm: AlgorithmName, case: Case, *, with_reference: bool = False) -> Errors:
    """Errors of an algorithm on a case; `with_reference` adds the divergence to the reference model to the loss."""
    expected = reference.answer_of(algorithm, case, with_reference=with_reference)
    loss, gradient = ours(algorithm, case, with_reference=with_reference)
    apart, largest = 0.0, 0.0
    for group, rows in enumerate(expected.gradient):
        for member, slope in enumerate(rows):
            found = gradient.get((group, member), np.zeros_like(slope))
            apart = max(apart, float(np.abs(found - slope).max()))
            largest = max(largest, float(np.abs(slope).max()))
    return Errors(loss=abs(loss - expected.loss) / expected.size, gradient=apart / largest)


def ours(algorithm: AlgorithmName, case: Case, *, with_reference: bool) -> tuple[float, dict[tuple[int, int], Floats]]:
    """Loss and derivatives of the real functions, by group and member."""
    settings = LossSettings(
        clip_low=reference.CLIP_LOW,
        clip_high=reference.CLIP_HIGH,
        importance_cap=reference.CAP,
        beta=reference.BETA,
        reference_kl=reference.KL if with_reference and algorithm != "dpo" else 0.0,
    )
    recipe = recipe_of(algorithm, settings, advantage=None)
    batch = case.batch(with_reference=with_reference)
    work = lay_out(batch, recipe, generator=torch.Generator().manual_seed(0), device=CPU)
    if work.rows is None:
        return 0.0, {}
    members = [case.groups[group][member] for group, member in work.ids]
    new = [_tensor(member, "new").requires_grad_() for member in members]
    proximal = [_tensor(member, "proximal") for member in members]
    rows = work.rows
    terms = TokenTerms(
        new_logprobs=torch.cat(new),
        proximal_logprobs=torch.cat(proximal),
        behaviour_logprobs=rows.behaviour_logprobs[rows.completion],
        advantages=torch.cat(list(work.advantages)),
        mask=rows.loss_mask[rows.completion],
        rows=torch.arange(len(new)).repeat_interleave(torch.tensor([len(each) for each in new])),
        reference_logprobs=None if rows.reference_logprobs is None else rows.reference_logprobs[rows.completion],
        margins=torch.cat(pair_margins(work, recipe, proximal=proximal)) if recipe.has_pairs else None,
    )
    loss = recipe.objective(terms, constants=work.constants).total / work.divisors(recipe.normaliser)[0]
    loss.backward()  # type: ignore[no-untyped-call]
    found = {}
    for place, each in zip(work.ids, new, strict=True):
        found[place] = np.zeros(len(each)) if each.grad is None else each.grad.double().numpy()
    return float(loss.item()), found


def _tensor(member: Member, name: str) -> torch.Tensor:
    values: Floats = getattr(member, name)
    return torch.from_numpy(values).to(torch.float32)
