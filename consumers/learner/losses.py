"""Losses as pure functions of log-probabilities: one value per completion token.

Role: what one optimizer step minimises. Shapes are [tokens], all completion tokens of a micro-batch in one row after
the other; log-probabilities are natural logarithms.
Data in: `TokenTerms`, `[learner.loss]`. Data out: `TokenLoss`; the trainer multiplies it with `row_weights`, sums it,
and divides by a count over the whole minibatch (`normaliser` below).
Invariants: a token's value depends on its own row only, and rows are never split, so the split of a minibatch into
micro-batches, or over ranks, changes nothing but rounding. Importance weights carry no gradient.
Normalisers: `token`: sum over tokens / tokens (DAPO, arXiv 2503.14476); `sequence`: mean over tokens of each sequence,
mean over sequences (GRPO as published); `constant`: sum over tokens / a constant, mean over sequences (Dr. GRPO);
`sequence_sum`: sum over tokens, mean over sequences (REINFORCE); `pair`: sum over tokens / pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from consumers.learner.loss_settings import LossSettings


@dataclass(frozen=True, kw_only=True)
class TokenTerms:
    """What a loss may need of each token; every tensor has shape [tokens]."""

    new_logprobs: Tensor  # of the policy being trained, with gradient
    proximal_logprobs: Tensor  # of the policy at the beginning of this step
    behaviour_logprobs: Tensor  # the sampler's own, as stored
    advantages: Tensor
    mask: Tensor  # 1 trains, 0 does not; same dtype as the log-probabilities
    rows: Tensor  # int64, ascending: number of the token's sequence in this micro-batch
    reference_logprobs: Tensor | None = None  # of the frozen reference model; None: there is none
    margins: Tensor | None = None  # pairs only: beta * (best - worst), of the token's pair, at the present weights

    def row_sums(self, values: Tensor) -> Tensor:
        """Sums over the trained tokens of each sequence, shape [sequences]."""
        sums = torch.zeros(self.num_rows, dtype=values.dtype, device=values.device)
        return sums.index_add(0, self.rows, values * self.mask)

    def row_lengths(self) -> Tensor:
        """Trained tokens of each sequence, at least 1, shape [sequences]."""
        return self.row_sums(torch.ones_like(self.mask)).clamp(min=1)

    @property
    def num_rows(self) -> int:
        """Sequences of this micro-batch."""
        return 0 if len(self.rows) == 0 else int(self.rows[-1]) + 1


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """The loss of each token, and which tokens a limit was met at; every tensor has shape [tokens]."""

    values: Tensor  # with gradient; not masked
    clipped: Tensor | None = None  # bool: the clipped branch was taken
    capped: Tensor | None = None  # bool: the importance weight met its cap


LossFunction: TypeAlias = Callable[[TokenTerms, LossSettings], TokenLoss | Tensor]


def importance_weights(terms: TokenTerms, *, level: str, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance weights min(proximal / behaviour, cap) and where the cap was met, both [tokens].

    They correct for the age of the sampler and for differences between sampler and learner. `level`: `token`
    (truncation as rho-bar of V-trace, arXiv 1802.01561), `sequence` (of the product over the sequence, arXiv
    2110.00641 read per trajectory), `full` (token, without the cap), `none` (all 1).
    """
    log_ratio = terms.proximal_logprobs - terms.behaviour_logprobs
    if level == "none":
        return torch.ones_like(log_ratio), torch.zeros_like(log_ratio, dtype=torch.bool)
    if level == "sequence":
        log_ratio = terms.row_sums(log_ratio)[terms.rows]
    raw = torch.exp(log_ratio)
    if level == "full":
        return raw, torch.zeros_like(raw, dtype=torch.bool)
    return raw.clamp(max=cap), raw > cap


def clipped_loss(terms: TokenTerms, settings: LossSettings) -> TokenLoss:
    """Clipped surrogate with importance weights: -w * min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A).

    r = exp(new - proximal) is the PPO ratio within the step (arXiv 1707.06347); w corrects from proximal to behaviour:
    the decoupled objective (arXiv 2110.00641). With group advantages this is GRPO (arXiv 2402.03300), Dr. GRPO (arXiv
    2503.20783) or, with clip_high above clip_low, DAPO (arXiv 2503.14476), by advantage and normaliser.
    """
    ratio = torch.exp(terms.new_logprobs - terms.proximal_logprobs)
    weight, capped = importance_weights(terms, level=settings.importance_level, cap=settings.importance_cap)
    plain = ratio * terms.advantages
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * terms.advantages
    return TokenLoss(values=-(weight * torch.minimum(plain, clipped)), clipped=clipped < plain, capped=capped)


def reinforce_loss(terms: TokenTerms, settings: LossSettings) -> TokenLoss:
    """Score-function estimator with truncated importance weights, without clipping: -w * A * log new.

    w = min(new / behaviour, cap) without gradient, per token or per sequence: RLOO (arXiv 2402.14740) made off-policy
    as IMPALA does (arXiv 1802.01561), and what is called truncated importance sampling for rollouts of another engine.
    """
    present = TokenTerms(**{**vars(terms), "proximal_logprobs": terms.new_logprobs.detach()})
    weight, capped = importance_weights(present, level=settings.importance_level, cap=settings.importance_cap)
    return TokenLoss(values=-(weight * terms.advantages * terms.new_logprobs), capped=capped)


def gspo_loss(terms: TokenTerms, settings: LossSettings) -> TokenLoss:
    """GSPO (arXiv 2507.18071, equations 5 to 7): -min(s * A, clip(s) * A) of each sequence, at each of its tokens.

    s = exp(mean over the trained tokens of (new - behaviour)), the length-normalised ratio to the policy that made the
    sample. Its bounds are far narrower than PPO's: the paper has clip_low 3e-4 and clip_high 4e-4.
    """
    lengths = terms.row_lengths()
    ratio = torch.exp(terms.row_sums(terms.new_logprobs - terms.behaviour_logprobs) / lengths)[terms.rows]
    plain = ratio * terms.advantages
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * terms.advantages
    return TokenLoss(values=-torch.minimum(plain, clipped), clipped=clipped < plain)


def dpo_loss(terms: TokenTerms, settings: LossSettings) -> TokenLoss:
    """DPO (arXiv 2305.18290, equation 7): -log sigmoid(margin) of the pair of best and worst member.

    margin = beta * ((new - reference of the best) - (new - reference of the worst)), sums over the trained tokens. It
    comes from a pass before the gradient, so the two need not be in one micro-batch: a token's value has the pair's
    loss, shared out over its tokens, and the gradient -beta * sigmoid(-margin) * (+1 best, -1 worst) * d log new.

    Raises:
        ValueError: there are no margins.
    """
    if terms.margins is None:
        raise ValueError("dpo needs pairs: advantages +1 and -1, one of each per group")
    side = terms.advantages
    pull = settings.beta * torch.sigmoid(-terms.margins) * side
    shared = torch.nn.functional.softplus(-terms.margins) * side.abs() / (2 * terms.row_lengths()[terms.rows])
    return TokenLoss(values=shared - pull * (terms.new_logprobs - terms.new_logprobs.detach()))


def sft_loss(terms: TokenTerms, settings: LossSettings) -> TokenLoss:  # noqa: ARG001 - one signature for all
    """Weighted negative log-likelihood, -A * log new; with the advantage `best`: fine-tuning on the best members."""
    return TokenLoss(values=-(terms.advantages * terms.new_logprobs))


def reference_kl(terms: TokenTerms) -> Tensor | None:
    """Estimate of KL(new || reference) per token: exp(d) - d - 1 with d = reference - new, never negative (GRPO, arXiv
    2402.03300, equation 4; "k3"). None without a reference."""
    if terms.reference_logprobs is None:
        return None
    apart = terms.reference_logprobs - terms.new_logprobs
    return torch.exp(apart) - apart - 1


def row_weights(terms: TokenTerms, *, normaliser: str, constants: Tensor) -> Tensor:
    """What each token's loss is multiplied with before all are summed, shape [tokens]; see `Normalisers` above.

    Args:
        normaliser: by name.
        constants: [sequences], tokens that a sequence counts as; for `constant`.
    """
    if normaliser == "sequence":
        return terms.mask / terms.row_lengths()[terms.rows]
    if normaliser == "constant":
        return terms.mask / constants[terms.rows]
    return terms.mask


def cross_entropy_loss(logprobs: Tensor, *, mask: Tensor, num_tokens: Tensor) -> Tensor:
    """Negative log-likelihood of the masked tokens, over `num_tokens` (of all ranks), scalar: behaviour cloning."""
    return -(logprobs * mask).sum() / num_tokens.clamp(min=1)


BUILT_IN: dict[str, LossFunction] = {
    "clipped": clipped_loss,
    "reinforce": reinforce_loss,
    "gspo": gspo_loss,
    "dpo": dpo_loss,
    "sft": sft_loss,
}
