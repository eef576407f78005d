"""The policy loss as a pure function of log-probabilities.

Role: what one optimizer step minimises. Shapes are [tokens], all completion tokens of a micro-batch in one row;
log-probabilities are natural logarithms in float32.
Invariants: normalised by a token count given from outside, so the split into micro-batches changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TokenTerms:
    """What the loss needs of each token."""

    new_logprobs: Tensor  # of the policy being trained, with gradient
    proximal_logprobs: Tensor  # of the policy at the beginning of this step
    behaviour_logprobs: Tensor  # the sampler's own, as stored
    advantages: Tensor
    mask: Tensor  # 1 trains, 0 does not; same dtype as the log-probabilities


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """The loss, and sums over the trained tokens that statistics are made of."""

    loss: Tensor  # scalar, with gradient
    clipped_tokens: Tensor  # where the clipped branch was taken
    capped_tokens: Tensor  # where the importance weight met its cap
    mismatch_sum: Tensor  # sum of |proximal - behaviour|, nats


def grpo_loss(
    terms: TokenTerms, *, num_tokens: int, clip_low: float, clip_high: float, importance_cap: float
) -> LossTerms:
    """Clipped surrogate with truncated importance weights, averaged over `num_tokens`.

    Per token: w * min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A), with r = exp(new - proximal), the PPO ratio
    within the step (arXiv 1707.06347), and w = min(exp(proximal - behaviour), importance_cap), which corrects for the
    age of the sampler and for differences between sampler and learner (decoupled objective, arXiv 2110.00641;
    truncation as in arXiv 1806.10166, "V-trace" rho-bar). w carries no gradient.
    """
    ratio = torch.exp(terms.new_logprobs - terms.proximal_logprobs)
    log_weight = terms.proximal_logprobs - terms.behaviour_logprobs
    raw_weight = torch.exp(log_weight)
    weight = raw_weight.clamp(max=importance_cap)
    plain = ratio * terms.advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * terms.advantages
    surrogate = weight * torch.minimum(plain, clipped) * terms.mask
    return LossTerms(
        loss=-surrogate.sum() / num_tokens,
        clipped_tokens=((clipped < plain) * terms.mask).sum().detach(),
        capped_tokens=((raw_weight > importance_cap) * terms.mask).sum(),
        mismatch_sum=(log_weight.abs() * terms.mask).sum(),
    )


def cross_entropy_loss(logprobs: Tensor, *, mask: Tensor, num_tokens: Tensor) -> Tensor:
    """Negative log-likelihood of the masked tokens, over `num_tokens` (of all ranks), scalar: behaviour cloning."""
    return -(logprobs * mask).sum() / num_tokens.clamp(min=1)
