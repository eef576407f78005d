"""What a training step was like, summed over micro-batches, minibatches and ranks.

Role: the trainer adds, the report reads.
Data in: terms and losses of micro-batches. Data out: `StepStats`.
Invariants: everything summed here adds up over ranks; means are made once, at the end. Nothing here has a gradient.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from consumers.learner.furthest import Furthest
from consumers.learner.losses import TokenLoss, TokenTerms
from consumers.learner.team import Team


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
    learning_rate: float = 0.0
    entropy: float = 0.0  # of the policy, nats
    sampler_log_ratio: float = 0.0  # estimate of KL(behaviour || proximal): behaviour - proximal, nats
    sampler_kl: float = 0.0  # the same, never negative: r - 1 - log r with r = proximal / behaviour
    advantage_size: float = 0.0  # |advantage|
    own: Mapping[str, float] = field(default_factory=dict)  # what only this algorithm has
    gaps: Mapping[tuple[int, int], bytes] = field(default_factory=dict)  # see `consumers.learner.furthest`


_TOKEN_SUMS = ("num_tokens", "clipped", "capped", "mismatch", "k1", "k3", "entropy", "advantage")
_OTHER_SUMS = ("kl", "kl_tokens", "num_pairs", "pairs_right", "margin", "reward", "num_samples")


class Sums:
    """Running sums over a step; `values` may be replaced by their sums over all ranks.

    Args:
        rewards: of the samples held here.
        keep_gaps: samples of which the gap to the sampler is kept token by token.
    """

    def __init__(self, rewards: Sequence[float], *, keep_gaps: int = 0) -> None:
        self._furthest = Furthest(keep_gaps)
        self.values = [0.0] * (len(_TOKEN_SUMS) + len(_OTHER_SUMS))
        self.values[-2:] = [float(sum(rewards)), float(len(rewards))]

    def add(
        self,
        terms: TokenTerms,
        loss: TokenLoss,
        *,
        entropy: Tensor,
        kl: Tensor | None,
        ids: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take one micro-batch; all tensors have shape [tokens]. `ids`: group and member of its rows."""
        self._furthest.add(terms, ids=ids)
        mask = terms.mask
        with torch.no_grad():
            apart = terms.proximal_logprobs - terms.behaviour_logprobs
            none = torch.zeros_like(mask)
            columns = (
                torch.ones_like(mask),
                none if loss.clipped is None else loss.clipped,
                none if loss.capped is None else loss.capped,
                apart.abs(),
                -apart,
                torch.exp(apart) - 1 - apart,
                entropy,
                terms.advantages.abs(),
                none if kl is None else kl,
                none if kl is None else torch.ones_like(mask),
            )
            table = torch.stack([column.to(mask.dtype) for column in columns])  # one transfer, not one per figure
            sums: list[float] = (table * mask).sum(dim=1).tolist()
        sums += _pairs(terms)
        for number, value in enumerate(sums):
            self.values[number] += value

    def stats(
        self,
        *,
        loss: float,
        grad_norm: float,
        learning_rate: float,
        team: Team | None = None,
    ) -> StepStats:
        """Means over what was summed up, beside what is kept of single samples.

        Raises:
            RankLost: a rank of the team did not take part within the limit.
        """
        found = dict(zip((*_TOKEN_SUMS, *_OTHER_SUMS), self.values, strict=True))
        count, pairs = max(1.0, found["num_tokens"]), max(1.0, found["num_pairs"])
        own = {"reference_kl": found["kl"] / found["kl_tokens"]} if found["kl_tokens"] else {}
        if found["num_pairs"]:
            own |= {"pair_accuracy": found["pairs_right"] / pairs, "pair_margin": found["margin"] / pairs}
        return StepStats(
            loss=loss,
            grad_norm=grad_norm,
            reward_mean=found["reward"] / max(1.0, found["num_samples"]),
            num_tokens=int(found["num_tokens"]),
            clipped_share=found["clipped"] / count,
            capped_share=found["capped"] / count,
            mismatch_mean=found["mismatch"] / count,
            learning_rate=learning_rate,
            entropy=found["entropy"] / count,
            sampler_log_ratio=found["k1"] / count,
            sampler_kl=found["k3"] / count,
            advantage_size=found["advantage"] / count,
            own=own,
            gaps=self._furthest.gaps(team),
        )


def _pairs(terms: TokenTerms) -> list[float]:
    """Pairs, those whose better member is the likelier one against the reference, and their margins; counted at the
    better member's first token."""
    if terms.margins is None:
        return [0.0, 0.0, 0.0]
    first = torch.ones_like(terms.rows, dtype=torch.bool)
    first[1:] = terms.rows[1:] != terms.rows[:-1]
    margins = terms.margins[first & (terms.advantages > 0)]
    return [float(len(margins)), float((margins > 0).sum().item()), float(margins.sum().item())]
