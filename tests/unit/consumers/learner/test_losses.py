"""Losses against an independent float64 reference, and what each of them must never do."""

from __future__ import annotations

import math

import pytest
import torch

from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.losses import (
    TokenLoss,
    TokenTerms,
    clipped_loss,
    cross_entropy_loss,
    gspo_loss,
    importance_weights,
    reference_kl,
    reinforce_loss,
    row_weights,
)
from ops.bench.algorithms.case import make_case
from ops.bench.algorithms.compare import compare, names

MOST_APART = 1e-6  # relative; float32 sums over some hundred tokens
NEW = [-0.5, -1.2, -0.1, -2.0, -0.7]
PROXIMAL = [-0.9, -1.0, -0.1, -1.0, -0.7]
BEHAVIOUR = [-1.9, -1.0, -0.4, -1.1, -0.2]
ADVANTAGES = [1.0, -1.0, 0.5, -2.0, 1.5]
MASK = [1.0, 1.0, 1.0, 1.0, 0.0]
ROWS = [0, 0, 0, 1, 1]


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize("has_turns", [False, True])
@pytest.mark.parametrize("algorithm", names())
def test_equals_the_float64_reference(algorithm: AlgorithmName, has_turns: bool, with_reference: bool) -> None:
    """Advantages, loss, normaliser and gradient together, from rewards to the derivative of every log-probability."""
    errors = compare(algorithm, make_case(seed=6, has_turns=has_turns), with_reference=with_reference)
    assert errors.loss < MOST_APART
    assert errors.gradient < MOST_APART


def terms_of(new: list[float]) -> tuple[TokenTerms, torch.Tensor]:
    parameter = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    terms = TokenTerms(
        new_logprobs=parameter,
        proximal_logprobs=torch.tensor(PROXIMAL, dtype=torch.float64),
        behaviour_logprobs=torch.tensor(BEHAVIOUR, dtype=torch.float64),
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64),
        mask=torch.tensor(MASK, dtype=torch.float64),
        rows=torch.tensor(ROWS),
    )
    return terms, parameter


def slopes(loss: TokenLoss, terms: TokenTerms, parameter: torch.Tensor) -> list[float]:
    (loss.values * terms.mask).sum().backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    found: list[float] = parameter.grad.tolist()
    return found


def test_says_what_was_clipped_and_capped() -> None:
    terms, _ = terms_of(NEW)
    loss = clipped_loss(terms, LossSettings())
    assert loss.clipped is not None
    assert loss.capped is not None
    # Token 0: ratio 1.49 with a positive advantage; token 3: ratio 0.37 with a negative one.
    assert loss.clipped.tolist() == [True, False, False, True, False]
    assert loss.capped.tolist() == [True, False, False, False, False]  # token 0: exp(1.0)


def test_no_gradient_through_masked_and_clipped_tokens() -> None:
    terms, parameter = terms_of(NEW)
    gradient = slopes(clipped_loss(terms, LossSettings()), terms, parameter)
    assert gradient[0] == gradient[3] == gradient[4] == 0.0
    assert gradient[1] != 0.0


def test_gradient_on_policy_is_that_of_weighted_log_likelihood() -> None:
    terms, parameter = terms_of(PROXIMAL)
    expected = [
        -min(math.exp(p - b), 2.0) * a * m for p, b, a, m in zip(PROXIMAL, BEHAVIOUR, ADVANTAGES, MASK, strict=True)
    ]
    assert slopes(clipped_loss(terms, LossSettings()), terms, parameter) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("none", [1.0] * 5),
        ("full", [math.exp(p - b) for p, b in zip(PROXIMAL, BEHAVIOUR, strict=True)]),
        ("token", [min(2.0, math.exp(p - b)) for p, b in zip(PROXIMAL, BEHAVIOUR, strict=True)]),
        (
            "sequence",
            [2.0, 2.0, 2.0, math.exp(0.1), math.exp(0.1)],
        ),  # exp(1.3) meets the cap; the masked one is left out
    ],
)
def test_importance_weights_by_level(level: str, expected: list[float]) -> None:
    terms, _ = terms_of(NEW)
    weights, capped = importance_weights(terms, level=level, cap=2.0)
    assert weights.tolist() == pytest.approx(expected)
    assert bool(capped.any()) == (level in ("token", "sequence"))


def test_weights_of_reinforce_carry_no_gradient() -> None:
    terms, parameter = terms_of(BEHAVIOUR)
    gradient = slopes(reinforce_loss(terms, LossSettings()), terms, parameter)
    assert gradient == pytest.approx([-a * m for a, m in zip(ADVANTAGES, MASK, strict=True)])


def test_gspo_moves_all_trained_tokens_of_a_sequence_alike() -> None:
    terms, parameter = terms_of(BEHAVIOUR)
    gradient = slopes(gspo_loss(terms, LossSettings()), terms, parameter)
    assert gradient[0] == gradient[1] == gradient[2] == pytest.approx(-(1.0 - 1.0 + 0.5) / 3)
    assert gradient[4] == 0.0


def test_divergence_is_never_negative_and_zero_where_both_agree() -> None:
    terms, parameter = terms_of(NEW)
    assert reference_kl(terms) is None
    agrees = TokenTerms(**{**vars(terms), "reference_logprobs": parameter.detach()})
    apart = TokenTerms(**{**vars(terms), "reference_logprobs": terms.behaviour_logprobs})
    found, other = reference_kl(agrees), reference_kl(apart)
    assert found is not None
    assert other is not None
    assert found.tolist() == [0.0] * 5
    assert bool((other > 0).all())


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        ("token", [1, 1, 1, 1, 0]),
        ("sequence_sum", [1, 1, 1, 1, 0]),
        ("sequence", [1 / 3, 1 / 3, 1 / 3, 1, 0]),
        ("constant", [1 / 8, 1 / 8, 1 / 8, 1 / 16, 0]),
    ],
)
def test_normalisers_weigh_tokens(normaliser: str, expected: list[float]) -> None:
    terms, _ = terms_of(NEW)
    constants = torch.tensor([8.0, 16.0], dtype=torch.float64)
    assert row_weights(terms, normaliser=normaliser, constants=constants).tolist() == pytest.approx(expected)


def test_cross_entropy_is_the_masked_mean() -> None:
    mask = torch.tensor([1.0, 1.0, 0.0])
    loss = cross_entropy_loss(torch.tensor([-1.0, -3.0, -9.0]), mask=mask, num_tokens=mask.sum())
    assert loss.item() == pytest.approx(2.0)
