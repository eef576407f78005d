"""Batches that the client library cannot unpack: where they end, so that reading goes on behind them.

Role: the library reports the batch's first offset, again and again, and never passes it. How far it goes is not told:
this finds out, by trying to read at later offsets with a consumer of its own. Inside the batch the library names the
same first offset, behind it another or a record: so the end is exact, after about 2 log2(records) tries.
Invariants: nothing is skipped that could be read; memory is bounded by the library's limit of an unpacked batch
(`receive.message.max.bytes`).
Failure: `DeadlineExceeded` when it takes too long, `LogError` when the broker refuses.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from topics.clock import Deadline
from topics.kafka.client import Connection, LibraryLog, reader_config
from topics.kafka.errors import is_out_of_range, is_transient, is_unpackable, translated, translating
from topics.kafka.offsets import Place
from topics.log import ReaderSettings

_LIMIT_S = 120.0
_SLICE_S = 0.2


def end_of_batch(connection: Connection, place: Place, *, first: int) -> int:
    """Offset after the last record of a batch that cannot be unpacked; `first` when it can be, after all.

    Args:
        connection: of the reader.
        place: full topic name and partition.
        first: the offset that the library named.

    Raises:
        DeadlineExceeded: it is not known within 120 s.
        LogError: the broker does not let us read.
    """
    deadline = Deadline.after(_LIMIT_S)
    with translating("setting up a consumer"):
        consumer = Consumer(reader_config(connection, ReaderSettings(topics=())), logger=LibraryLog())
    try:
        if not _is_inside(consumer, place, offset=first, first=first, deadline=deadline):
            return first
        inside, step = first, 1
        while _is_inside(consumer, place, offset=first + step, first=first, deadline=deadline):
            inside, step = first + step, step * 2
        behind = first + step
        while behind - inside > 1:
            middle = (inside + behind) // 2
            if _is_inside(consumer, place, offset=middle, first=first, deadline=deadline):
                inside = middle
            else:
                behind = middle
        return behind
    finally:
        consumer.close()


def _is_inside(consumer: Consumer, place: Place, *, offset: int, first: int, deadline: Deadline) -> bool:
    """Whether an offset belongs to the batch that begins at `first`."""
    consumer.incremental_assign([TopicPartition(*place, offset)])
    try:
        while True:
            deadline.check(
                f"the end of the batch at offset {first} of {place[0]} [{place[1]}], which cannot be unpacked"
            )
            for message in consumer.consume(1, _SLICE_S):
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF or is_out_of_range(error):
                    return False
                if is_unpackable(error):
                    return message.offset() == first
                if not is_transient(error):
                    raise translated(error, doing=f"reading {place[0]} [{place[1]}]") from KafkaException(error)
    finally:
        consumer.incremental_unassign([TopicPartition(*place)])
