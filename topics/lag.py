"""What lag is: readable records a group has not committed, or unknown.

Invariants: unknown is None and never 0; records that retention removed are not lag, they cannot be read any more.
Followed: Case 47 of docs/cases.md (markers, no commits, moved log start).
"""

from __future__ import annotations

from topics.log import PartitionLag


def partition_lag(
    topic: str, partition: int, *, committed: int | None, retained: tuple[int, int] | None
) -> PartitionLag:
    """Lag of one partition.

    Args:
        topic: short name.
        partition: its number.
        committed: committed position; None when the group has none.
        retained: (earliest, end) offsets, end being after the last readable record; None when unknown.

    Returns:
        `lag_records` counts offsets from the first readable one on. Transaction markers between unread records count
        too; readers commit past those at the end, so a drained partition has exactly 0. A committed position beyond
        the end (the topic was recreated) makes it None.
    """
    end = None if retained is None else retained[1]
    if committed is None or retained is None:
        return PartitionLag(topic=topic, partition=partition, committed=committed, end=end, lag_records=None)
    lag = retained[1] - max(committed, retained[0])
    return PartitionLag(
        topic=topic,
        partition=partition,
        committed=committed,
        end=end,
        lag_records=lag if committed <= retained[1] else None,
    )
