"""What training needs of the other ranks; without any, the trainer has no team.

Role: the seam between the trainer and `consumers.learner.ranks`.
Data in and out: numbers, gradients in place, digests.
Invariants: all ranks call the same methods in the same order; afterwards all of them hold the same bits.
Failure: `RankLost`, `RanksDiverged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn


class Team(Protocol):
    """The ranks that train together."""

    @property
    def rank(self) -> int:
        """Our own number."""
        ...

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks, in float64.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        ...

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the ranks; one that no rank has stays None.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        ...

    def is_compared(self, step: int) -> bool:
        """Whether the ranks' states are compared after this step."""
        ...

    def compare(self, digest: bytes, *, step: int) -> None:
        """Make sure that all ranks hold the same state.

        Raises:
            RanksDiverged: they do not.
            RankLost: a rank did not take part within the limit.
        """
        ...
