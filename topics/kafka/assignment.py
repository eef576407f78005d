"""Which partitions a reader has and where each one stands.

Role: the bookkeeping of `KafkaReader`: partitions on their way in (no start offset yet), positions, paused ones, and
the table from Kafka's topic names to ours.
Invariants: every partition that is read has a known next offset; a revoked partition is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.errors import LogError
from topics.catalog import Topic, full_name
from topics.log import Positions, TopicPartition


@dataclass(slots=True)
class TopicState:
    """One topic of a reader; looked up once per record."""

    name: str  # short
    record_types: tuple[type, ...]
    tombstones: bool  # a record without a value means something
    next: dict[int, int] = field(default_factory=dict)  # partition -> next offset, of partitions being read


class Assignment:
    """Partitions by short name; the caller talks to the library, this class remembers."""

    def __init__(self, run: str, topics: Sequence[Topic]) -> None:
        self.full_names = {topic.name: full_name(run, topic) for topic in topics}
        self.states = {
            self.full_names[topic.name]: TopicState(
                name=topic.name, record_types=topic.records, tombstones=topic.cleanup == "compact"
            )
            for topic in topics
        }
        self.pending: dict[TopicPartition, int | None] = {}  # to be read; an offset, or None: still to be found out
        self.paused: set[TopicPartition] = set()
        self.strayed: set[TopicPartition] = set()  # their next offset is not on the broker

    def all(self) -> tuple[TopicPartition, ...]:
        """Everything assigned, whether it is read already or not."""
        return (*self.active(), *self.pending)

    def active(self) -> list[TopicPartition]:
        """Partitions being read."""
        return [(state.name, partition) for state in self.states.values() for partition in state.next]

    def positions(self) -> dict[TopicPartition, int]:
        """Next offset of each partition that has one."""
        known = {
            (state.name, partition): offset
            for state in self.states.values()
            for partition, offset in state.next.items()
        }
        return known | {place: offset for place, offset in self.pending.items() if offset is not None}

    def next_of(self, place: TopicPartition) -> int:
        """Next offset of an active partition."""
        return self.states[self.full_names[place[0]]].next[place[1]]

    def begin(self, starts: Positions) -> None:
        """Partitions are being read from these offsets on."""
        for (name, partition), offset in starts.items():
            self.states[self.full_names[name]].next[partition] = offset
            self.pending.pop((name, partition), None)
            self.strayed.discard((name, partition))

    def forget(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions are gone; returns those of them that were being read."""
        were_active = []
        for place in places:
            self.pending.pop(place, None)
            self.paused.discard(place)
            self.strayed.discard(place)
            if self.states[self.full_names[place[0]]].next.pop(place[1], None) is not None:
                were_active.append(place)
        return were_active

    def check(self, places: Iterable[TopicPartition], *, doing: str) -> None:
        """Accept partitions that are assigned.

        Raises:
            LogError: one is not.
        """
        owned = self.all()
        strangers = [place for place in places if place not in owned]
        if strangers:
            raise LogError(f"cannot {doing} {strangers}: assigned are {list(owned)}")


def full_positions(
    positions: Mapping[TopicPartition, int], full_names: Mapping[str, str]
) -> dict[tuple[str, int], int]:
    """The same with Kafka's topic names."""
    return {(full_names[name], partition): offset for (name, partition), offset in positions.items()}
