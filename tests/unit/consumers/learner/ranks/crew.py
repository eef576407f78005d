"""Learner ranks as threads of one process, over real gloo: what they do is what processes do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch.distributed import HashStore  # type: ignore[attr-defined]

from consumers.learner.ranks.backends import gloo
from consumers.learner.ranks.group import Backends, RankGroup
from schemas.errors import RankLost

__all__ = ["HashStore", "together"]
LIMIT_S = 20.0
T = TypeVar("T")


def lost(doing: str, error: RuntimeError) -> RankLost:
    return RankLost(f"{doing}: {error}")


def together(num_ranks: int, work: Callable[[RankGroup], T], *, limit_s: float = LIMIT_S) -> list[T]:
    """What `work` gives on each rank; the first error is raised when all have ended."""
    store = HashStore()

    def one(rank: int) -> T:
        control = gloo(store, rank=rank, num_ranks=num_ranks, address="127.0.0.1", limit_s=limit_s)
        backends = Backends(control=control, gradients=control, store=store)
        return work(RankGroup(backends, rank=rank, num_ranks=num_ranks, lost=lost))

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(one, rank) for rank in range(num_ranks)]
    return [future.result() for future in futures]
