"""Learner ranks as threads of one process, over real gloo: what they do is what processes do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Protocol, TypeVar, cast

from torch.distributed import HashStore  # type: ignore[attr-defined]

from consumers.learner.ranks.backends import gloo
from consumers.learner.ranks.group import Backends, RankGroup
from schemas.errors import RankLost

__all__ = ["HashStore", "together"]
LIMIT_S = 20.0
T = TypeVar("T")


class Timed(Protocol):
    """What a backend of the library has besides collectives."""

    def _set_default_timeout(self, timeout: timedelta) -> None: ...


def lost(doing: str, error: RuntimeError) -> RankLost:
    return RankLost(f"{doing}: {error}")


def together(num_ranks: int, work: Callable[[RankGroup], T], *, limit_s: float = LIMIT_S) -> list[T]:
    """What `work` gives on each rank; the first error is raised when all have ended.

    Args:
        limit_s: of a collective; all are connected before the first one, and stay so until the last one has ended.
    """
    store, groups = HashStore(), list[RankGroup]()
    connected = Barrier(num_ranks)

    def one(rank: int) -> T:
        control = gloo(store, rank=rank, num_ranks=num_ranks, address="127.0.0.1", limit_s=LIMIT_S)
        connected.wait(LIMIT_S)
        cast("Timed", control)._set_default_timeout(timedelta(seconds=limit_s))
        backends = Backends(control=control, gradients=control, store=store)
        groups.append(RankGroup(backends, rank=rank, num_ranks=num_ranks, lost=lost))
        return work(groups[-1])

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(one, rank) for rank in range(num_ranks)]
    return [future.result() for future in futures]
