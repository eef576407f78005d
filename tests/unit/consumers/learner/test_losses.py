"""The policy loss against an independent float64 reference."""

from __future__ import annotations

import math

import pytest
import torch

from consumers.learner.losses import LossTerms, TokenTerms, cross_entropy_loss, grpo_loss

NEW = [-0.5, -1.2, -0.1, -2.0, -0.7]
PROXIMAL = [-0.9, -1.0, -0.1, -1.0, -0.7]
BEHAVIOUR = [-1.9, -1.0, -0.4, -1.1, -0.2]
ADVANTAGES = [1.0, -1.0, 0.5, -2.0, 1.5]
MASK = [1.0, 1.0, 1.0, 1.0, 0.0]


def reference(*, clip_low: float, clip_high: float, cap: float) -> float:
    total = 0.0
    for new, proximal, behaviour, advantage, mask in zip(NEW, PROXIMAL, BEHAVIOUR, ADVANTAGES, MASK, strict=True):
        ratio = math.exp(new - proximal)
        weight = min(math.exp(proximal - behaviour), cap)
        clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
        total += mask * weight * min(ratio * advantage, clipped * advantage)
    return -total / sum(MASK)


def loss_of(new: list[float], *, cap: float = 2.0) -> tuple[LossTerms, torch.Tensor]:
    parameter = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    terms = TokenTerms(
        new_logprobs=parameter,
        proximal_logprobs=torch.tensor(PROXIMAL, dtype=torch.float64),
        behaviour_logprobs=torch.tensor(BEHAVIOUR, dtype=torch.float64),
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64),
        mask=torch.tensor(MASK, dtype=torch.float64),
    )
    return grpo_loss(terms, num_tokens=4, clip_low=0.2, clip_high=0.2, importance_cap=cap), parameter


@pytest.mark.parametrize("cap", [0.5, 2.0, 100.0])
def test_equals_the_reference(cap: float) -> None:
    loss, _ = loss_of(NEW, cap=cap)
    assert loss.loss.item() == pytest.approx(reference(clip_low=0.2, clip_high=0.2, cap=cap), rel=1e-12)


def test_counts_what_was_clipped_and_capped() -> None:
    loss, _ = loss_of(NEW)
    # Token 0: ratio 1.49 with a positive advantage; token 3: ratio 0.37 with a negative one.
    assert loss.clipped_tokens.item() == 2
    assert loss.capped_tokens.item() == 1  # token 0: exp(1.0)
    assert loss.mismatch_sum.item() == pytest.approx(1.0 + 0.0 + 0.3 + 0.1)


def test_no_gradient_through_masked_and_clipped_tokens() -> None:
    loss, parameter = loss_of(NEW)
    loss.loss.backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    gradient = parameter.grad.tolist()
    assert gradient[0] == gradient[3] == gradient[4] == 0.0
    assert gradient[1] != 0.0


def test_gradient_on_policy_is_that_of_weighted_log_likelihood() -> None:
    loss, parameter = loss_of(PROXIMAL)
    loss.loss.backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    expected = [
        -min(math.exp(p - b), 2.0) * a * m / 4 for p, b, a, m in zip(PROXIMAL, BEHAVIOUR, ADVANTAGES, MASK, strict=True)
    ]
    assert parameter.grad.tolist() == pytest.approx(expected, rel=1e-12)


def test_cross_entropy_is_the_masked_mean() -> None:
    mask = torch.tensor([1.0, 1.0, 0.0])
    loss = cross_entropy_loss(torch.tensor([-1.0, -3.0, -9.0]), mask=mask, num_tokens=mask.sum())
    assert loss.item() == pytest.approx(2.0)
