"""Draw one token per row, each row with its own temperature, top-k and top-p.

Role: the only place where logits become tokens.
Data in: logits [rows, vocabulary] of any float dtype and one uniform number per row.
Data out: tokens int64 [rows] and log-probabilities float32 [rows].
Invariants: a row's result depends on its own logits, parameters and uniform number only, never on other rows. Filters
are applied in the order temperature, top-k, top-p; each renormalises (Holtzman et al. 2020 for top-p).
Failure: none; logits that are not finite give a NaN log-probability, which the learner drops by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.records import SamplingParams


@dataclass(frozen=True, kw_only=True)
class SamplingRows:
    """The sampling parameters of the rows of a batch, as columns."""

    temperature: Tensor  # float32 [rows, 1]; 1 for greedy rows
    greedy: Tensor  # bool [rows]
    num_greedy: int
    filtered: Tensor  # int64 [filtered rows]: rows with top-k or top-p on
    top_k: Tensor  # int64 [filtered rows, 1]; the vocabulary's size or more when off
    top_p: Tensor  # float64 [filtered rows, 1]; infinite when off, so that rounding of the sum cuts nothing

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, device: torch.device) -> SamplingRows:
        """Turn parameters into columns on the device of the logits."""
        greedy = [p.temperature == 0 for p in params]
        filtered = [row for row, p in enumerate(params) if not greedy[row] and (p.top_k > 0 or p.top_p < 1)]
        top_k = [params[row].top_k if params[row].top_k > 0 else 2**31 - 1 for row in filtered]
        top_p = [params[row].top_p if params[row].top_p < 1 else float("inf") for row in filtered]
        temperature = [1.0 if p.temperature == 0 else p.temperature for p in params]
        return cls(
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device).unsqueeze(1),
            greedy=torch.tensor(greedy, device=device),
            num_greedy=sum(greedy),
            filtered=torch.tensor(filtered, dtype=torch.int64, device=device),
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device).unsqueeze(1),
            top_p=torch.tensor(top_p, dtype=torch.float64, device=device).unsqueeze(1),
        )


def draw(logits: Tensor, rows: SamplingRows, *, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Sample by inverting the cumulative distribution; greedy rows take the largest logit.

    Args:
        logits: [rows, vocabulary].
        rows: their parameters.
        uniform: float64 [rows] in [0, 1).

    Returns:
        tokens int64 [rows]; natural log-probabilities float32 [rows]: of the distribution drawn from, or for greedy
        rows of the softmax at temperature 1.
    """
    # The maximum is taken off before the division, so that a tiny temperature cannot overflow.
    centred = logits.float()
    centred = centred - centred.amax(dim=-1, keepdim=True)
    if rows.num_greedy == len(rows.greedy):
        return _pick_largest(centred)
    scaled = centred / rows.temperature
    if len(rows.filtered):
        scaled[rows.filtered] = keep_likely(scaled[rows.filtered], top_k=rows.top_k, top_p=rows.top_p)
    logprobs = torch.log_softmax(scaled, dim=-1)
    tokens = _invert(logprobs, uniform)
    chosen = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    if rows.num_greedy:
        best, best_logprobs = _pick_largest(centred)
        tokens = torch.where(rows.greedy, best, tokens)
        chosen = torch.where(rows.greedy, best_logprobs, chosen)
    return tokens, chosen


def keep_likely(scaled: Tensor, *, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set logits outside the k most likely, then outside the smallest set that reaches p, to minus infinity.

    Args:
        scaled: float32 [rows, vocabulary], after temperature.
        top_k: int64 [rows, 1].
        top_p: float64 [rows, 1]; the most likely token is always kept.
    """
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[-1], device=scaled.device)
    ordered = ordered.masked_fill(rank >= top_k, float("-inf"))
    mass = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    mass_before = mass.cumsum(dim=-1) - mass
    ordered = ordered.masked_fill((mass_before >= top_p) & (rank > 0), float("-inf"))
    return torch.empty_like(scaled).scatter_(-1, order, ordered)


def _pick_largest(centred: Tensor) -> tuple[Tensor, Tensor]:
    tokens = centred.argmax(dim=-1)
    logprobs = torch.log_softmax(centred, dim=-1)
    return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the total: else rounding could pick a token after the last possible one.
    target = torch.minimum(uniform.unsqueeze(1) * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return tokens.clamp_(max=logprobs.shape[-1] - 1)
