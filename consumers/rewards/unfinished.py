"""Which samples of which partition have no reward yet, and so what may be committed.

Role: the commit rule of a reward consumer.
Invariants: an offset is committed only when every record below it has an outcome that survives `kill -9`: a reward on
its topic, a dead letter, or a failure that the sample itself carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consumers.rewards.pool import Taken
from topics.log import TopicPartition


class Unfinished:
    """Samples taken, per partition, in the order of their offsets."""

    def __init__(self) -> None:
        self._open: dict[TopicPartition, dict[int, Taken]] = {}
        self._committed: dict[TopicPartition, int] = {}

    def add(self, taken: Taken) -> None:
        """A sample was read."""
        self._open.setdefault(place_of(taken), {})[taken.envelope.offset] = taken

    def done(self, taken: Taken) -> None:
        """Its reward is acknowledged by the broker."""
        partition = self._open.get(place_of(taken), {})
        if partition.get(taken.envelope.offset) is taken:
            del partition[taken.envelope.offset]

    def forget(self, partitions: Iterable[TopicPartition]) -> list[Taken]:
        """These went away: returns what was open on them."""
        gone: list[Taken] = []
        for place in partitions:
            gone += self._open.pop(place, {}).values()
            self._committed.pop(place, None)
        return gone

    def committable(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What to commit, given the reader's positions: only partitions where it is more than was committed.

        The position itself when nothing is open: it also moves past dead letters and transaction markers.
        """
        found: dict[TopicPartition, int] = {}
        for place, position in positions.items():
            lowest = next(iter(self._open.get(place, {})), position)
            if lowest != self._committed.get(place):
                found[place] = lowest
        return found

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """The broker accepted these."""
        self._committed.update(positions)


def place_of(taken: Taken) -> TopicPartition:
    """Where a sample came from."""
    return (taken.envelope.topic, taken.envelope.partition)
