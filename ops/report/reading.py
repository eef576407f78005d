"""Reads topics up to where they end now.

Data in: topics of a run. Data out: envelopes, in order per partition.
Invariants: nothing is committed; memory does not grow with the topics; what arrives after the start is not waited for.
Failure: `DeadlineExceeded` when nothing comes for `SILENCE_S`. Undecodable records are skipped: the stages that read
them have reported them, and the audit counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topics.catalog import Topic
from topics.clock import Deadline
from topics.log import Envelope, Log, ReaderHooks, ReaderSettings

SILENCE_S = 30.0
_BATCH = 1000
_POLL_S = 0.5


def read_to_end(log: Log, topics: Sequence[Topic], *, partition: int | None = None) -> Iterator[Envelope]:
    """Every record from the earliest retained one to the present end.

    Args:
        partition: only this partition number of each topic; None: all.

    Raises:
        DeadlineExceeded: the broker gave nothing for `SILENCE_S`.
        LogError: the broker cannot be read.
    """
    settings = ReaderSettings(
        topics=tuple(topics), partitions=None if partition is None else (partition,), instance="report"
    )
    reader = log.reader(settings, hooks=ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None))
    try:
        ends = reader.end_positions()
        silence = Deadline.after(SILENCE_S)
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            envelopes = reader.poll(_BATCH, deadline=Deadline.after(_POLL_S))
            if envelopes:
                silence = Deadline.after(SILENCE_S)
                yield from envelopes
            else:
                silence.check(f"records of {', '.join(topic.name for topic in topics)} to be read to their end")
    finally:
        reader.close()
