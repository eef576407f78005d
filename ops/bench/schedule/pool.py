"""The pool of a run, for the simulator and for scripted stages: who has how many slots, and who waits for some.

Role: an executor without processes. Slots go one way at a time: given up by one side, then under way, then come.
Data in: orders, and what has happened. Data out: what is to be done.
Invariants: engines, ranks and slots under way add up to the slots of the pool, whatever is ordered.
Failure: `ValueError` for an order beyond the pool.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Order:
    """A scale command."""

    target: str  # "rollout" or "learner"
    replicas: int
    reason: str = ""


class PoolState:
    """See the module.

    Args:
        rollouts, ranks: at the start.
        slots: of the pool; None: there is none, and nothing may be ordered.
    """

    def __init__(self, *, rollouts: int, ranks: int, slots: int | None) -> None:
        self.ranks = ranks  # that train
        self.rollouts = rollouts  # engines there are, those that leave included
        self.slots = slots
        self._wanted = {"rollout": rollouts, "learner": ranks}
        self._to_learner = self._to_rollout = 0  # under way
        self._spare = 0  # ranks that came and wait for the next step

    def order(self, order: Order) -> None:
        """Take a new wish."""
        wanted = {**self._wanted, order.target: order.replicas}
        if self.slots is None:
            raise ValueError("there is no pool")
        self._wanted = wanted

    def num_to_retire(self, num_working: int) -> int:
        """Engines that are to leave now."""
        return max(0, num_working - self._wanted["rollout"])

    def left(self) -> None:
        """An engine has gone: its slot is under way to the learner."""
        self.rollouts -= 1
        self._to_learner += 1

    def rank_came(self) -> None:
        """A slot has come to the learner, which uses it from its next step on."""
        self._to_learner -= 1
        self._spare += 1

    def change_ranks(self) -> int:
        """Between two steps: use what came, give up what is too much; returns slots that go to the rollouts."""
        self.ranks, self._spare = self.ranks + self._spare, 0
        given = max(0, self.ranks - self._wanted["learner"])
        self.ranks -= given
        self._to_rollout += given
        return given

    def engine_came(self) -> None:
        """A slot has come to the rollouts."""
        self._to_rollout -= 1
        self.rollouts += 1

    @property
    def num_under_way(self) -> int:
        """Slots that work for nobody."""
        return self._to_learner + self._to_rollout + self._spare
