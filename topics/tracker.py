"""Which records of which partition are unfinished: the commit rule, as pure bookkeeping.

Role: lets records finish in any order while commits stay right.
Data in and out: envelopes taken and finished, positions of the reader; commit positions out.
Invariants: a commit position never passes an unfinished record; when all are finished it equals the reader's position,
which also lies past dead letters and transaction markers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from topics.log import Envelope, Positions, TopicPartition


@dataclass(frozen=True, slots=True)
class _Unfinished:
    envelope: Envelope
    since_s: float


@dataclass(slots=True)
class _Part:
    unfinished: OrderedDict[int, _Unfinished] = field(default_factory=OrderedDict)  # by offset, ascending
    position: int | None = None
    committed: int | None = None

    def commit_position(self) -> int | None:
        return next(iter(self.unfinished), self.position)


class OffsetTracker:
    """Unfinished records per partition. Times are monotonic seconds, given by the caller."""

    def __init__(self) -> None:
        self._parts: dict[TopicPartition, _Part] = {}

    def take(self, envelope: Envelope, *, now_s: float) -> None:
        """A record is being worked on. Records of a partition are taken in the order of their offsets."""
        part = self._parts.setdefault((envelope.topic, envelope.partition), _Part())
        part.unfinished[envelope.offset] = _Unfinished(envelope, now_s)
        part.position = envelope.offset + 1

    def reached(self, positions: Positions) -> None:
        """The reader's positions, after the records it returned were taken."""
        for place, position in positions.items():
            self._parts.setdefault(place, _Part()).position = position

    def finish(self, envelope: Envelope) -> bool:
        """A record is done; False when it is not ours any more (its partition went away in between), or was done."""
        if not self.owns(envelope):
            return False
        del self._parts[envelope.topic, envelope.partition].unfinished[envelope.offset]
        return True

    def owns(self, envelope: Envelope) -> bool:
        """Whether this very delivery of the record is unfinished and its partition still ours."""
        part = self._parts.get((envelope.topic, envelope.partition))
        entry = part.unfinished.get(envelope.offset) if part is not None else None
        return entry is not None and entry.envelope is envelope

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are gone; their unfinished records are no longer ours."""
        for place in partitions:
            self._parts.pop(place, None)

    def commit_positions(self) -> dict[TopicPartition, int]:
        """Lowest unfinished offset per partition, or the position where all is done; only those that moved."""
        found = {place: (part, part.commit_position()) for place, part in self._parts.items()}
        return {
            place: position
            for place, (part, position) in found.items()
            if position is not None and position != part.committed
        }

    def committed(self, positions: Positions) -> None:
        """These were committed."""
        for place, position in positions.items():
            if place in self._parts:
                self._parts[place].committed = position

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions that are ours."""
        return tuple(self._parts)

    @property
    def num_unfinished(self) -> int:
        """Records taken and not finished, in the partitions that are ours."""
        return sum(len(part.unfinished) for part in self._parts.values())

    def oldest_s(self, *, now_s: float) -> float:
        """Seconds the longest-running record has been unfinished; 0 when there is none."""
        ages = [now_s - entry.since_s for part in self._parts.values() for entry in part.unfinished.values()]
        return max(ages, default=0.0)

    def unfinished_over(self, seconds: float, *, now_s: float) -> list[Envelope]:
        """Records unfinished for longer than `seconds`."""
        return [
            entry.envelope
            for part in self._parts.values()
            for entry in part.unfinished.values()
            if now_s - entry.since_s > seconds
        ]
