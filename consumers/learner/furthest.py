"""The samples of a step on which the trainer and the sampler agree least, token by token.

Role: a mean over a step (`logprob_mismatch`) does not say where the two lie apart; these few do.
Data in: terms of micro-batches, of this rank's share. Data out: per sample the trainer's log-probability before the
step less the sampler's.
Invariants: a sample's distance is the mean of the absolute gap over its trained tokens; at most `limit` are held, and
only what may be among them leaves the device. What is not finite counts as furthest.
Failure: none.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import torch

from consumers.learner.losses import TokenTerms
from consumers.learner.team import Team
from schemas.packed import pack_f16

_MOST = torch.finfo(torch.float32).max
_LARGEST = torch.finfo(torch.float16).max  # of a gap as it is kept
_ABSENT = -1.0  # where a rank has fewer samples


class Furthest:
    """See the module.

    Args:
        limit: samples that are kept; 0: none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[tuple[float, tuple[int, int], bytes]] = []  # a heap, the nearest first

    def add(self, terms: TokenTerms, *, ids: Sequence[tuple[int, int]]) -> None:
        """Take one micro-batch.

        Args:
            terms: of its tokens.
            ids: group and member of its rows.
        """
        if not self._limit:
            return
        with torch.no_grad():
            gaps = terms.proximal_logprobs - terms.behaviour_logprobs
            sizes = gaps.float().abs().nan_to_num(nan=_MOST, posinf=_MOST)
            means: list[float] = (terms.row_sums(sizes) / terms.row_lengths()).tolist()
            for row in heapq.nlargest(self._limit, range(len(ids)), key=means.__getitem__):
                if len(self._held) == self._limit and means[row] <= self._held[0][0]:
                    return
                own = terms.rows == row
                gap = torch.where(terms.mask[own] > 0, gaps[own], torch.nan).clamp(-_LARGEST, _LARGEST)
                held = (means[row], ids[row], pack_f16(gap.half().cpu().numpy()))
                (heapq.heappush if len(self._held) < self._limit else heapq.heapreplace)(self._held, held)

    def gaps(self, team: Team | None = None) -> Mapping[tuple[int, int], bytes]:
        """By group and member: packed float16, one per completion token, nats; NaN: not trained.

        Args:
            team: leave out what is not among the furthest of all ranks.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        held = sorted(self._held, reverse=True)
        if team is not None and self._limit:
            held = held[: self._num_among(team, [mean for mean, _, _ in held])]
        return {ids: gaps for _, ids, gaps in held}

    def _num_among(self, team: Team, means: Sequence[float]) -> int:
        """How many of our means, largest first, are among the largest of all ranks; of equal ones the lower rank's."""
        table = [0.0] * (team.num_ranks * self._limit)
        begin = team.rank * self._limit
        table[begin : begin + self._limit] = [*means, *[_ABSENT] * (self._limit - len(means))]
        order = sorted(enumerate(team.sum(table)), key=lambda each: -each[1])[: self._limit]
        return sum(place // self._limit == team.rank for place, mean in order if mean != _ABSENT)
