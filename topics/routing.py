"""Where a record goes and whether it may: the checks both logs make before anything is sent.

Invariants: group n is on partition n mod P of every data topic; a record is on a topic that carries its type.
Failure: `RecordTooLarge`, `LogError`; nothing was written.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import LogError, RecordTooLarge
from schemas.records import Outcome, Partial, PromptGroup, Record, ReferenceScore, Reward, Sample
from topics.catalog import Topic, num_partitions, partition_of

Headers = Sequence[tuple[str, bytes]]


def partition_for(topic: Topic, record: Record, *, data_partitions: int, partition: int | None) -> int:
    """The partition of a record; `partition` is needed for, and only for, records of a data topic without a group.

    Raises:
        LogError: the topic does not carry this type, or `partition` is missing, out of range or not the group's own.
    """
    if not isinstance(record, topic.records):
        names = ", ".join(each.__name__ for each in topic.records)
        raise LogError(f"topic {topic.name} carries {names}, got {type(record).__name__}; nothing was written")
    if isinstance(record, Sample | Reward | ReferenceScore | PromptGroup | Outcome | Partial):
        own = partition_of(record.group, data_partitions) if topic.partitions == "data" else 0
        if partition is not None and partition != own:
            raise LogError(f"group {record.group} belongs on partition {own} of {topic.name}, got {partition}")
        return own
    if topic.partitions == "one":
        return check_partition(topic, 0 if partition is None else partition, data_partitions=data_partitions)
    if partition is None:
        raise LogError(
            f"a {type(record).__name__} has no group, so its partition on {topic.name} does not follow from it",
            hint="pass partition=",
        )
    return check_partition(topic, partition, data_partitions=data_partitions)


def check_partition(topic: Topic, partition: int, *, data_partitions: int) -> int:
    """Accept a partition that the topic has.

    Raises:
        LogError: it has fewer.
    """
    limit = num_partitions(topic, data_partitions)
    if not 0 <= partition < limit:
        raise LogError(f"topic {topic.name} has partitions 0 to {limit - 1}, got {partition}; nothing was written")
    return partition


def check_size(topic: Topic, num_bytes: int) -> None:
    """Accept an encoded record of `num_bytes` bytes if the topic takes it.

    Raises:
        RecordTooLarge: naming topic, size and limit.
    """
    if num_bytes > topic.max_record_bytes:
        raise RecordTooLarge(
            f"a record of {num_bytes} bytes exceeds the {topic.max_record_bytes} bytes that topic {topic.name} takes; "
            "it was not sent",
            hint="shorten what goes into it (max_tokens, prompt or metadata size)",
        )
