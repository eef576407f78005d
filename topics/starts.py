"""Where reading a partition begins: the rule for a position that is not on the log, or not of this log.

Role: one decision, shared by both logs: never a silent reset, never a silent skip (promise 12).
Invariants: below the retained range, reading resumes at the earliest retained record, and the caller reports the exact
count lost. A position of a topic that was deleted and made anew, which its id tells, means nothing in the new one:
reading begins at its earliest record, and the caller reports what was held. A position without an id (of an older
release) counts as one of the present topic, unless it lies beyond its end. With the present id, or given by the owner
of the reader, a position beyond the end is refused: records were lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import OffsetsLost
from topics.log import LostOffsets, ReaderSettings, RecreatedTopic, TopicPartition


@dataclass(frozen=True, kw_only=True)
class Held:
    """A position, and the id of the topic it belongs to; None: not known."""

    offset: int
    topic_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Present:
    """A partition as it is now."""

    topic_id: str
    earliest: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where to begin, and what there is to tell of it."""

    offset: int
    lost: LostOffsets | None = None
    recreated: RecreatedTopic | None = None


def find_start(place: TopicPartition, held: Held | None, *, present: Present, settings: ReaderSettings) -> Start:
    """The offset to read from.

    Args:
        place: short topic name and partition.
        held: the position to go on from; None: there is none, and `settings.start` decides.
        present: the partition.
        settings: of the reader.

    Raises:
        OffsetsLost: with `on_lost="stop"`, or the position is beyond the end of its own topic.
    """
    if held is None:
        return Start(offset=present.earliest if settings.start == "earliest" else present.end)
    where = f"{place[0]} [{place[1]}]"
    if _is_of_another(held, present=present, settings=settings):
        if settings.on_lost == "stop":
            raise OffsetsLost(
                f"offset {held.offset} of {where} belongs to a topic that was deleted and made anew; reading stops",
                hint='set on_lost to "resume" to go on with the new topic, from its earliest record',
            )
        recreated = RecreatedTopic(
            topic=place[0], partition=place[1], held=held.offset, resumed_at=present.earliest, topic_id=present.topic_id
        )
        return Start(offset=present.earliest, recreated=recreated)
    if held.offset > present.end:
        raise OffsetsLost(
            f"offset {held.offset} of {where} is beyond the end {present.end}: the topic was recreated or lost "
            "records, and what a reader did with its old records cannot be continued",
            hint="restore from a state that belongs to this topic, or start a new run",
        )
    if held.offset >= present.earliest:
        return Start(offset=held.offset)
    if settings.on_lost == "stop":
        raise OffsetsLost(
            f"offset {held.offset} of {where} is no longer retained: {present.earliest - held.offset} offsets are "
            f"lost, the earliest is {present.earliest}; reading stops",
            hint='set on_lost to "resume" to go on from the earliest retained record',
        )
    lost = LostOffsets(topic=place[0], partition=place[1], wanted=held.offset, resumed_at=present.earliest)
    return Start(offset=present.earliest, lost=lost)


def _is_of_another(held: Held, *, present: Present, settings: ReaderSettings) -> bool:
    """Whether the position belongs to a topic of the same name that is gone."""
    if held.topic_id is None:
        return settings.assign == "group" and held.offset > present.end
    return held.topic_id != present.topic_id
