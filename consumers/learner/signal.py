"""Groups without a signal: all rewards are equal, so no advantage is different from 0 (DAPO, arXiv 2503.14476, 3.2).

Role: says which complete groups are dropped in favour of others; the credit that their outcomes give back lets the
prompt producer admit new ones, which is the refill.
Data in: groups with a winner. Data out: whether to drop one.
Invariants: at most `limit` groups are dropped between two steps, so a task that is solved, or hopeless, ends in steps
that change nothing and not in an endless search; nothing is dropped with `limit` 0.
Failure: none.
"""

from __future__ import annotations

from consumers.learner.groups import OpenGroup


class SignalFilter:
    """Drops groups without a signal.

    Args:
        limit: most groups that are dropped between two steps; 0: none.
        by_step: turns' own rewards are a signal as well.
    """

    def __init__(self, *, limit: int, by_step: bool) -> None:
        self._limit = limit
        self._by_step = by_step
        self._num_dropped = 0

    def stepped(self) -> None:
        """A step was trained: count anew."""
        self._num_dropped = 0

    def drops(self, group: OpenGroup) -> bool:
        """Whether to drop a group that has a winner; True counts it as dropped."""
        if self._num_dropped >= self._limit or not is_flat(group, by_step=self._by_step):
            return False
        self._num_dropped += 1
        return True


def is_flat(group: OpenGroup, *, by_step: bool) -> bool:
    """Whether all valid members of a group, at least two, would be trained with the same reward."""
    slots = [] if group.winner is None else [slot for _, slot in group.winner.valid_slots()]
    if len(slots) < 2:
        return False
    names = group.rule.common(slot.values for slot in slots)
    rewards = {group.rule.combine(slot.values, names=names) for slot in slots}
    steps = {slot.sample.step_rewards for slot in slots if slot.sample is not None} if by_step else set()
    return len(rewards) == 1 and len(steps) <= 1
