"""Figures of a step, summed over micro-batches and over ranks."""

from __future__ import annotations

import pytest
import torch

from consumers.learner.losses import TokenLoss, TokenTerms
from consumers.learner.step_stats import Sums


def sums_of(num_tokens: int, *, kl: float | None) -> Sums:
    """What one rank sums up: so many tokens, each with this divergence from a reference, or without one."""
    values = torch.zeros(num_tokens)
    terms = TokenTerms(
        new_logprobs=values,
        proximal_logprobs=values,
        behaviour_logprobs=values,
        advantages=values,
        mask=torch.ones(num_tokens),
        rows=torch.zeros(num_tokens, dtype=torch.int64),
    )
    found = Sums([])
    each = None if kl is None else torch.full((num_tokens,), kl)
    if num_tokens:
        found.add(terms, TokenLoss(values=values), entropy=values, kl=each)
    return found


def summed(*ranks: Sums) -> Sums:
    """As every rank has it once they have added up theirs."""
    whole = Sums([])
    whole.values = [sum(each) for each in zip(*(rank.values for rank in ranks), strict=True)]
    return whole


@pytest.mark.parametrize("first", [sums_of(0, kl=None), sums_of(3, kl=None)], ids=["no rows", "rows without"])
def test_the_divergence_is_that_of_the_ranks_that_have_one(first: Sums) -> None:
    stats = summed(first, sums_of(4, kl=0.5), sums_of(2, kl=2.0)).stats(loss=0.0, grad_norm=0.0, learning_rate=0.0)
    assert stats.own == {"reference_kl": pytest.approx(1.0)}


def test_without_a_reference_there_is_no_divergence() -> None:
    assert sums_of(3, kl=None).stats(loss=0.0, grad_norm=0.0, learning_rate=0.0).own == {}
