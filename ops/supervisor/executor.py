"""What carries scale commands out: the local supervisor does, and a cluster manager would with one more class.

Role: the whole of the interface between commands and processes. `ops.supervisor.orders` judges the commands (epoch,
limits), acknowledges them on `events`, and reports what an executor says of itself; an executor has the processes.
What an executor must do beyond the signatures (docs/concepts/scheduling.md, "Another executor"):
- a number is a state: asking for it twice changes nothing, and what dies is started again up to it;
- a rollout or reward that is one too many gets SIGUSR2 and the time it needs: it finishes, acknowledges and leaves;
- the learner's number is that of its ranks: rank 0 alone gets SIGUSR2, all of them end with exit 0 after a checkpoint,
  then ranks 0 to K - 1 start with `rlweave run learner --slot RANK --set learner.ranks=K`;
- with a pool, the slots that rollouts and ranks hold, those that retire included, are never more than `slots`; the
  learner goes on at its old size until there is room for the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many processes of a kind there are."""

    running: int
    retiring: int


class Executor(Protocol):
    """See the module."""

    @property
    def slots(self) -> int | None:
        """Size of the pool that rollouts and learner ranks share; None: they share none."""
        ...

    @property
    def replicas(self) -> Mapping[str, Replicas]:
        """Processes that run, and that still retire, by target: "rollout", "reward.NAME", "learner"."""
        ...

    def scale(self, target: str, replicas: int) -> None:
        """Have so many processes of a target from now on; returns at once, the rest comes about as it can.

        Raises:
            ValueError: there is no such target, or it cannot have so many.
        """
        ...
