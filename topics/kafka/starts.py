"""Where reading a partition begins.

Role: turns "assigned" into an offset, explicitly, so that the library never resets a position by itself.
Invariants: a position below the retained range is reported with the exact count and resumes at the earliest retained
record; one beyond the end is refused, since the topic is not the one it was taken from.
Failure: `OffsetsLost`; library errors come through as they are, for the reader to wait out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from topics.kafka.assignment import full_positions
from topics.kafka.offsets import BrokerOffsets, Place
from topics.log import LostOffsets, ReaderSettings, TopicPartition
from topics.starts import checked_start


class Starts:
    """Finds start offsets for one reader.

    Args:
        committed: gives what the reader's group has committed; arguments are partitions and seconds.
    """

    def __init__(
        self,
        offsets: BrokerOffsets,
        settings: ReaderSettings,
        *,
        full_names: Mapping[str, str],
        committed: Callable[[Sequence[Place], float], Mapping[Place, int]],
    ) -> None:
        self._offsets = offsets
        self._committed = committed
        self._settings = settings
        self._full_names = full_names

    def find(
        self, pending: Mapping[TopicPartition, int | None], *, timeout_s: float
    ) -> tuple[dict[TopicPartition, int], list[LostOffsets]]:
        """Start offset of each partition, and what retention took away of the wanted ones.

        Raises:
            OffsetsLost: with `on_lost="stop"`, or a wanted offset is beyond the end.
            KafkaException: the broker did not answer, or not for all.
        """
        places = [(self._full_names[topic], partition) for topic, partition in pending]
        wanted = self._wanted(pending, timeout_s=timeout_s)
        ranges = self._offsets.ranges(places, timeout_s=timeout_s)
        starts: dict[TopicPartition, int] = {}
        lost: list[LostOffsets] = []
        for place in pending:
            earliest, end = ranges[self._full_names[place[0]], place[1]]
            offset = wanted.get(place, earliest if self._settings.start == "earliest" else end)
            starts[place] = checked_start(place, offset, retained=(earliest, end), on_lost=self._settings.on_lost)
            if offset < earliest:
                lost.append(LostOffsets(topic=place[0], partition=place[1], wanted=offset, resumed_at=earliest))
        return starts, lost

    def _wanted(self, pending: Mapping[TopicPartition, int | None], *, timeout_s: float) -> dict[TopicPartition, int]:
        wanted = {place: offset for place, offset in pending.items() if offset is not None}
        unknown = {place: 0 for place in pending if place not in wanted}
        if self._settings.assign == "group" and unknown:
            places = list(full_positions(unknown, self._full_names))
            committed = self._committed(places, timeout_s)
            for place in unknown:
                offset = committed.get((self._full_names[place[0]], place[1]))
                if offset is not None:
                    wanted[place] = offset
        return wanted
