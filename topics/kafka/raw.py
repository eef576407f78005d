"""Records as bytes, with everything around them, of any topics of a cluster: what copies and repairs need.

Role: beside the typed reader and writer, for tools only. `RawLog` reads ranges of offsets and writes copies that keep
key, value, headers and timestamp, tombstones included.
Data in and out: full Kafka topic names, partitions and offsets in; `RawRecord`s out.
Invariants: partitions are assigned, never subscribed, and nothing is ever committed, so no consumer group changes or
comes to be; committed transactions only; a range is read to its end exactly, transaction markers at the end included.
A batch that cannot be unpacked is left out, and named in a warning.
Failure: `LogUnavailable` without a broker, `LogError` for the rest; a range that stops moving is a `DeadlineExceeded`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # re-exported implicitly

from schemas.errors import DeliveryError, LogError
from topics.access import TOOLS_RUN
from topics.clock import Deadline
from topics.kafka.client import Connection, LibraryLog, reader_config, writer_config
from topics.kafka.configs import topic_configs
from topics.kafka.errors import cause_of, is_transient, is_unpackable, translated, translating
from topics.kafka.offsets import REQUEST_TIMEOUT_S, AdminHandle, BrokerOffsets, Place, num_copies
from topics.kafka.unreadable import end_of_batch
from topics.log import ReaderSettings, WriterSettings

Ranges = Mapping[Place, tuple[int, int]]  # (full topic name, partition) -> first offset, offset after the last

_log = logging.getLogger("topics.kafka.raw")
_STALLED_S = 30.0  # without any record or event
_SLICE_S = 0.05
_BATCH = 500
_CONNECT_S = 8.0
_BUFFER_BYTES = 64 * 1024 * 1024
_FLUSH_S = 60.0
_NO_CONFIG: Mapping[str, str] = {}
_COPIED_CONFIG = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "compression.type",
)
_COPY_CONFIG = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}  # keep times


@dataclass(frozen=True, kw_only=True)
class RawRecord:
    """One record as it is on the log."""

    topic: str  # full name
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None  # None: a tombstone
    headers: tuple[tuple[str, bytes], ...]  # in order, names may repeat
    unix_ms: int


class RawLog:
    """Byte-level access to one cluster. Constructing does no I/O.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: client library settings that win over ours.
        buffer_bytes: most bytes that are read ahead; few for who reads many short ranges.
    """

    def __init__(
        self, bootstrap: str, *, config: Mapping[str, str] = _NO_CONFIG, buffer_bytes: int = _BUFFER_BYTES
    ) -> None:
        self._connection = Connection(bootstrap=bootstrap, run=TOOLS_RUN, data_partitions=1, overrides=dict(config))
        self._handle = AdminHandle(self._connection)
        self._buffer_bytes = buffer_bytes
        self._offsets = BrokerOffsets(self._handle)

    def partition_counts(self) -> dict[str, int]:
        """Partition count per topic of the cluster, by full name.

        Raises:
            LogUnavailable: no broker answers, naming the address and what to do.
            AccessDenied: one refuses us.
        """
        topics = self._handle.connect(limit_s=_CONNECT_S).topics
        return {name: len(found.partitions) for name, found in topics.items()}

    def copies(self) -> dict[str, int]:
        """Fewest replicas of a partition, per topic of the cluster.

        Raises:
            LogUnavailable, AccessDenied: as `partition_counts`.
        """
        topics = self._handle.connect(limit_s=_CONNECT_S).topics
        return {name: num_copies(found) for name, found in topics.items()}

    def ranges(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        """(earliest, end) offsets of partitions, the end being after the last readable record."""
        with translating("asking for offsets"):
            return self._offsets.ranges(places)

    def first_at(self, places: Sequence[Place], *, unix_ms: int) -> dict[Place, int | None]:
        """Offset of the first record at or after a time, per partition; None: there is none."""
        with self._consumer() as consumer, translating("asking for offsets of a time"):
            asked = [TopicPartition(topic, partition, unix_ms) for topic, partition in places]
            found = consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
        return {(each.topic, each.partition): each.offset if each.offset >= 0 else None for each in found}

    def configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Configuration per topic."""
        return topic_configs(self._handle, topics)

    def groups(self, prefix: str) -> list[str]:
        """Consumer groups whose id begins with `prefix`, sorted."""
        with translating("listing consumer groups"):
            found = self._handle.client().list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
        return sorted(each.group_id for each in found.valid if each.group_id.startswith(prefix))

    def committed(self, group: str) -> dict[Place, int]:
        """Committed position of every partition the group has one of."""
        with translating(f"asking for the offsets of {group}"):
            request = [ConsumerGroupTopicPartitions(group)]
            futures = self._handle.client().list_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S)
            found = futures[group].result().topic_partitions
        return {(each.topic, each.partition): each.offset for each in found if each.error is None and each.offset >= 0}

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics, with all their records."""
        if topics:
            futures = self._handle.client().delete_topics(list(topics), request_timeout=REQUEST_TIMEOUT_S)
            for name, future in futures.items():
                with translating(f"deleting topic {name}"):
                    future.result()

    def read(self, ranges: Ranges) -> Iterator[RawRecord]:
        """Records of the ranges, in order of offsets within a partition, partitions interleaved.

        Raises:
            LogError: the client failed in a way that waiting does not mend.
            DeadlineExceeded: nothing moved for 30 s.
        """
        wanted = {place: bounds for place, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not wanted:
            return
        with self._consumer() as consumer:
            consumer.incremental_assign(
                [TopicPartition(topic, part, start) for (topic, part), (start, _) in wanted.items()]
            )
            ends = {place: end for place, (_, end) in wanted.items()}
            yield from _read_all(consumer, ends, connection=self._connection)

    def create_like(self, target: str, *, source: str) -> bool:
        """Create `target` with the partitions, copies and limits of `source`; False when it exists with the partitions.

        Raises:
            LogError: the source does not exist, or the target has another partition count.
        """
        counts = self.partition_counts()
        if source not in counts:
            raise LogError(f"topic {source} does not exist")
        if target in counts:
            if counts[target] != counts[source]:
                raise LogError(
                    f"topic {target} has {counts[target]} partitions, {source} has {counts[source]}; nothing was "
                    "copied",
                    hint="choose another name, or delete that topic",
                )
            return False
        seen = self.configs([source])[source]
        config = {key: seen[key] for key in _COPIED_CONFIG if key in seen} | _COPY_CONFIG
        new = NewTopic(target, num_partitions=counts[source], replication_factor=self.copies()[source], config=config)
        self._wait_created(self._handle.client().create_topics([new], request_timeout=REQUEST_TIMEOUT_S), target)
        return True

    def write(self, topic: str, records: Iterable[RawRecord]) -> int:
        """Append copies to `topic`, partition by partition as they were; returns how many.

        Their times are kept in topics of `create_like`; topics of a run are stamped by the broker.

        Raises:
            DeliveryError: at least one was not written.
        """
        failed: list[KafkaError] = []
        settings = WriterSettings()
        producer = Producer(
            writer_config(self._connection, settings),
            logger=LibraryLog(),
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
        count = 0
        for record in records:
            _produce(producer, topic, record=record)
            count += 1
            if failed:
                break
        left = producer.flush(_FLUSH_S)
        if failed or left:
            why = failed[0].str() if failed else f"{left} were not acknowledged within {_FLUSH_S:g} s"
            raise DeliveryError(f"copying to {topic} failed: {why}")
        return count

    def _wait_created(self, futures: Mapping[str, object], target: str) -> None:
        with translating(f"creating topic {target}"):
            futures[target].result()  # type: ignore[attr-defined]  # a future
        deadline = Deadline.after(_STALLED_S)
        while target not in self.partition_counts():
            deadline.check(f"topic {target} to appear")
            deadline.clock.wait(0.02)

    def _consumer(self) -> _Closing:
        return _Closing(
            Consumer(
                reader_config(self._connection, ReaderSettings(topics=(), buffer_bytes=self._buffer_bytes)),
                logger=LibraryLog(),
            )
        )


class _Closing:
    """A consumer that is closed at the end of a `with`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _read_all(consumer: Consumer, ends: dict[Place, int], *, connection: Connection) -> Iterator[RawRecord]:
    stalled = Deadline.after(_STALLED_S)
    while ends:
        with translating("reading"):
            messages = consumer.consume(_BATCH, 0) or consumer.consume(1, _SLICE_S)
        if not messages:
            stalled.check(f"records of {', '.join(f'{topic} [{part}]' for topic, part in sorted(ends))}")
            continue
        stalled = Deadline.after(_STALLED_S)
        passed: set[Place] = set()
        for message in messages:
            place = (str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if error is not None and is_unpackable(error):
                if place not in passed and place in ends:
                    _pass(consumer, message, place=place, ends=ends, connection=connection)
                passed.add(place)
                continue
            record = _record(message, place)
            if place not in ends or record is None:
                continue
            if record.offset < ends[place]:
                yield record
        for message in messages:
            _finish(consumer, message, ends=ends)


def _pass(
    consumer: Consumer, message: Message, *, place: Place, ends: dict[Place, int], connection: Connection
) -> None:
    """Go on behind a batch that cannot be unpacked."""
    first = int(message.offset() or 0)
    behind = end_of_batch(connection, place, first=first)
    if behind > first:
        what = "%d records of %s [%d], at the offsets %d to %d, cannot be unpacked and are left out: %s"
        _log.warning(what, behind - first, *place, first, behind - 1, message.error())
    consumer.incremental_unassign([TopicPartition(*place)])
    if behind >= ends[place]:
        del ends[place]
    else:
        consumer.incremental_assign([TopicPartition(*place, behind)])


def _record(message: Message, place: Place) -> RawRecord | None:
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF or is_transient(error):
            return None
        raise translated(error, doing=f"reading {place[0]} [{place[1]}]") from KafkaException(error)
    headers = message.headers()
    return RawRecord(
        topic=place[0],
        partition=place[1],
        offset=int(message.offset() or 0),
        key=message.key(),
        value=message.value(),
        headers=tuple(headers) if headers else (),  # type: ignore[arg-type]  # a list of (name, bytes)
        unix_ms=message.timestamp()[1],
    )


def _finish(consumer: Consumer, message: Message, *, ends: dict[Place, int]) -> None:
    """Stop reading a partition whose end is reached: by its last record, one beyond, or the end of the log."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        return
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        return
    reached = offset if error is not None else offset + 1
    if (topic, partition) in ends and reached >= ends[topic, partition]:
        del ends[topic, partition]
        consumer.incremental_unassign([TopicPartition(topic, partition)])


def _produce(producer: Producer, topic: str, *, record: RawRecord) -> None:
    deadline = Deadline.after(_FLUSH_S)
    while True:
        try:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
                timestamp=record.unix_ms,
            )
            producer.poll(0)
        except BufferError:
            deadline.check(f"room to copy to {topic}")
            producer.poll(_SLICE_S)
        except KafkaException as error:
            raise DeliveryError(f"copying to {topic} failed: {cause_of(error).str()}") from error
        else:
            return
