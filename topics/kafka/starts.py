"""Where reading a partition begins, on Kafka.

Role: turns "assigned" into an offset, explicitly, so that the library never resets a position by itself; remembers of
which topic, by its id, the positions of this reader are.
Invariants: the rule is `topics.starts.find_start`; ids are asked before offsets, so a topic that is made anew in
between is noticed at the next look, and before its offsets are called lost.
Failure: `OffsetsLost`; library errors come through as they are, for the reader to wait out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemas.errors import OffsetsLost
from topics.kafka.assignment import full_positions
from topics.kafka.ids import Ids, ask_ids
from topics.kafka.offsets import AdminHandle, BrokerOffsets
from topics.log import Positions, ReaderSettings, TopicPartition
from topics.starts import Held, Present, Start, find_start


class Starts:
    """Finds start offsets for one reader."""

    def __init__(self, handle: AdminHandle, settings: ReaderSettings, *, full_names: Mapping[str, str]) -> None:
        self._handle = handle
        self._offsets = BrokerOffsets(handle)
        self._settings = settings
        self._full_names = full_names
        self.ids: Ids = {}  # by full topic name, as last asked
        self._begun: dict[TopicPartition, str] = {}  # id of the topic in which each partition was begun
        self._left: dict[TopicPartition, int] = {}  # where partitions stood that went to others, or with their topic

    def find(self, pending: Mapping[TopicPartition, int | None], *, timeout_s: float) -> dict[TopicPartition, Start]:
        """Start of each partition, and what is to be told of it.

        Raises:
            OffsetsLost: with `on_lost="stop"`, or a wanted offset is beyond the end.
            KafkaException: the broker did not answer, or not for all.
        """
        places = [(self._full_names[topic], partition) for topic, partition in pending]
        names = sorted({name for name, _ in places})
        ids = ask_ids(self._handle, names, timeout_s=timeout_s)
        held = self._held(pending, ids=ids, timeout_s=timeout_s)
        ranges = self._offsets.ranges(places, timeout_s=timeout_s)
        starts: dict[TopicPartition, Start] = {}
        for place in pending:
            name = self._full_names[place[0]]
            earliest, end = ranges[name, place[1]]
            present = Present(topic_id=ids[name], earliest=earliest, end=end)
            try:
                starts[place] = find_start(place, held.get(place), present=present, settings=self._settings)
            except OffsetsLost:
                if ask_ids(self._handle, names, timeout_s=timeout_s) != ids:  # made anew since they were asked
                    return self.find(pending, timeout_s=timeout_s)
                raise
        self.ids.update(ids)
        self._begun.update({place: ids[self._full_names[place[0]]] for place in pending})
        return starts

    def begun_elsewhere(self, places: Iterable[TopicPartition], ids: Ids) -> list[TopicPartition]:
        """Those of `places` whose topic has another id by now."""
        return [place for place in places if self._is_other(place, ids.get(self._full_names[place[0]]))]

    def leave(self, positions: Positions) -> None:
        """Partitions go at these positions; they may come back, under another id."""
        self._left.update(positions)

    def topic_id(self, place: TopicPartition) -> str | None:
        """Id of the topic that a position of this reader belongs to; None when that is not known."""
        return self._begun.get(place, self.ids.get(self._full_names[place[0]]))

    def _is_other(self, place: TopicPartition, topic_id: str | None) -> bool:
        begun = self._begun.get(place)
        return begun is not None and topic_id is not None and begun != topic_id

    def _held(
        self, pending: Mapping[TopicPartition, int | None], *, ids: Ids, timeout_s: float
    ) -> dict[TopicPartition, Held]:
        """The position to go on from: the reader's own, else the committed one, else where it stood in a topic that
        is gone (with which the broker throws its committed offsets away)."""
        held = {
            place: Held(offset=offset, topic_id=self._begun.get(place))
            for place, offset in pending.items()
            if offset is not None
        }
        unknown = {place: 0 for place in pending if place not in held}
        if self._settings.assign == "group" and self._settings.group is not None and unknown:
            places = list(full_positions(unknown, self._full_names))
            committed = self._offsets.committed(self._settings.group, places, timeout_s=timeout_s)
            for place in unknown:
                found = committed.get((self._full_names[place[0]], place[1]))
                if found is not None:
                    held[place] = found
                elif place in self._left and self._is_other(place, ids[self._full_names[place[0]]]):
                    held[place] = Held(offset=self._left[place], topic_id=self._begun[place])
        return held
