"""The rule for a wanted offset that is not on the log: never a silent reset (promise 12).

Invariants: below the retained range, reading resumes at the earliest retained record, and the caller reports the exact
count lost; beyond the end it is refused, since the topic is not the one the offset was taken from.
"""

from __future__ import annotations

from typing import Literal

from schemas.errors import OffsetsLost
from topics.log import TopicPartition


def checked_start(
    place: TopicPartition, wanted: int, *, retained: tuple[int, int], on_lost: Literal["resume", "stop"]
) -> int:
    """The offset to read from: the wanted one, or the earliest retained.

    Raises:
        OffsetsLost: with `on_lost="stop"`, or the wanted offset is beyond the end.
    """
    earliest, end = retained
    where = f"{place[0]} [{place[1]}]"
    if wanted > end:
        raise OffsetsLost(
            f"offset {wanted} of {where} is beyond the end {end}: the topic was recreated or lost records, and what a "
            "reader did with its old records cannot be continued",
            hint="restore from a state that belongs to this topic, or start a new run",
        )
    if wanted < earliest and on_lost == "stop":
        raise OffsetsLost(
            f"offset {wanted} of {where} is no longer retained: {earliest - wanted} offsets are lost, the earliest is "
            f"{earliest}; reading stops",
            hint='set on_lost to "resume" to go on from the earliest retained record',
        )
    return max(wanted, earliest)
