"""The two logs under test, and what the behaviour suites share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from ops.services.model import ServicesInfo
from schemas.records import DeadLetter, LineageStarted, Sample, SamplingParams
from topics.catalog import SAMPLES, Topic, full_name
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import (
    Envelope,
    Log,
    LostOffsets,
    Positions,
    Reader,
    ReaderHooks,
    ReaderSettings,
    RecreatedTopic,
    TopicPartition,
    UnreadableBatch,
    Writer,
    WriterSettings,
)
from topics.memory import MemoryBroker, MemoryLog
from topics.queue import WorkQueue
from topics.starts import Held

P = 4
LIMIT_S = 30.0


class Backend(Protocol):
    """What the suite needs of a log besides the log itself."""

    log: Log

    def log_without_topics(self) -> Log: ...

    def delete_before(self, positions: Positions) -> None: ...

    def add_partitions(self, topic: Topic, *, count: int) -> None: ...

    def delete_topic(self, topic: Topic) -> None: ...

    def commit_without_id(self, settings: ReaderSettings, offset: int) -> None:
        """Commit on partition 0 of the samples, as older releases did."""
        ...


class MemoryBackend:
    def __init__(self, run: str) -> None:
        self.broker = MemoryBroker()
        self.log = MemoryLog(run=run, data_partitions=P, broker=self.broker)

    def log_without_topics(self) -> Log:
        return MemoryLog(run=f"{self.log.run}-none", data_partitions=P, broker=self.broker, create_topics=False)

    def delete_before(self, positions: Positions) -> None:
        self.log.delete_records(positions)

    def add_partitions(self, topic: Topic, *, count: int) -> None:
        stored = self.broker.topics[full_name(self.log.run, topic)]
        stored.partitions += [type(stored.partitions[0])() for _ in range(count - len(stored.partitions))]

    def delete_topic(self, topic: Topic) -> None:
        with self.broker.changed:
            self.broker.delete_topic(full_name(self.log.run, topic))

    def commit_without_id(self, settings: ReaderSettings, offset: int) -> None:
        group = self.broker.group(str(settings.group))
        group.committed[full_name(self.log.run, SAMPLES), 0] = Held(offset=offset)


class KafkaBackend:
    def __init__(self, log: KafkaLog, *, bootstrap: str) -> None:
        self.log = log
        self.bootstrap = bootstrap
        self.client = AdminClient({"bootstrap.servers": bootstrap})

    def log_without_topics(self) -> Log:
        return KafkaLog(self.bootstrap, run=f"{self.log.run}-none", data_partitions=P)

    def delete_before(self, positions: Positions) -> None:
        places = [Place(f"rlweave.{self.log.run}.{name}", part, offset) for (name, part), offset in positions.items()]
        for future in self.client.delete_records(places).values():
            future.result()

    def add_partitions(self, topic: Topic, *, count: int) -> None:
        for future in self.client.create_partitions([NewPartitions(full_name(self.log.run, topic), count)]).values():
            future.result()

    def delete_topic(self, topic: Topic) -> None:
        name = full_name(self.log.run, topic)
        self.client.delete_topics([name])[name].result()

    def commit_without_id(self, settings: ReaderSettings, offset: int) -> None:
        place = Place(full_name(self.log.run, SAMPLES), 0, offset)
        request = [ConsumerGroupTopicPartitions(str(settings.group), [place])]
        for future in self.client.alter_consumer_group_offsets(request).values():
            future.result()


@dataclass
class Told:
    """What the hooks of a reader were told."""

    dead_letters: list[DeadLetter] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    recreated: list[RecreatedTopic] = field(default_factory=list)
    unreadable: list[UnreadableBatch] = field(default_factory=list)
    assigned: list[TopicPartition] = field(default_factory=list)
    revoked: list[TopicPartition] = field(default_factory=list)

    def hooks(self) -> ReaderHooks:
        return ReaderHooks(
            dead_letter=self.dead_letters.append,
            lost=self.lost.append,
            recreated=self.recreated.append,
            unreadable=self.unreadable.append,
            assigned=self.assigned.extend,
            revoked=self.revoked.extend,
        )


def soon() -> Deadline:
    return Deadline.after(LIMIT_S)


def sample(group: int, member: int = 0, *, text: str = "") -> Sample:
    return Sample(
        run="r",
        group=group,
        member=member,
        attempt="a",
        producer="p",
        completion_text=text,
        sampling=SamplingParams(),
        seed=1,
        started_unix_ms=1,
        finished_unix_ms=2,
    )


def lineage(number: int) -> LineageStarted:
    return LineageStarted(run="r", lineage=number, parent=0, branch_step=0, seq=0, holder="h", started_unix_ms=0)


def write_samples(log: Log, groups: Sequence[int], *, member: int = 0) -> None:
    writer = log.writer(WriterSettings())
    for group in groups:
        writer.write(SAMPLES, sample(group, member))
    writer.flush(deadline=soon())
    writer.close(deadline=soon())


def write_in_transaction(writer: Writer, group: int, *, then: Callable[[], None] = lambda: None) -> None:
    """One sample that has reached the broker, then `then`, all inside a transaction."""
    with writer.transaction(deadline=soon()):
        writer.write(SAMPLES, sample(group))
        writer.flush(deadline=soon())
        then()


def until(condition: Callable[[], bool], *, what: str) -> None:
    deadline = soon()
    while not condition():
        deadline.check(what)


def read(reader: Reader, num_records: int) -> list[Envelope]:
    """Exactly `num_records`, by the deadline."""
    deadline = soon()
    found: list[Envelope] = []
    while len(found) < num_records:
        deadline.check(f"{num_records} records, got {len(found)}")
        found += reader.poll(num_records - len(found), deadline=Deadline.after(0.2))
    return found


def drain(reader: Reader) -> list[Envelope]:
    """All readable records: until every position is at the end."""
    found: list[Envelope] = []

    def at_end() -> bool:
        found.extend(reader.poll(1000, deadline=Deadline.after(0.2)))
        return bool(reader.assignment()) and reader.positions() == reader.end_positions()

    until(at_end, what="the end of the log")
    return found


def take_until(queue: WorkQueue, taken: list[Envelope], *, num_records: int) -> None:
    """Take until `taken` has exactly this many."""
    deadline = soon()
    while len(taken) < num_records:
        deadline.check(f"{num_records} records of work, got {len(taken)}")
        taken += queue.take(num_records, deadline=Deadline.after(0.2))
    assert len(taken) == num_records


def places(envelopes: Sequence[Envelope]) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in envelopes]


def groups_of(envelopes: Sequence[Envelope]) -> list[int]:
    return [each.record.group for each in envelopes if isinstance(each.record, Sample)]


class LogContract:
    """Inherited once per backend; `backend` gives a fresh run with its topics."""

    @pytest.fixture
    def open_reader(self, backend: Backend) -> Iterator[Callable[..., Reader]]:
        """Opens readers and closes them at the end."""
        opened: list[Reader] = []

        def open_reader(settings: ReaderSettings, told: Told | None = None) -> Reader:
            reader = backend.log.reader(settings, hooks=(told if told is not None else Told()).hooks())
            opened.append(reader)
            return reader

        yield open_reader
        for reader in opened:
            reader.close()

    @pytest.fixture
    def writer(self, backend: Backend) -> Iterator[Writer]:
        writer = backend.log.writer(WriterSettings())
        yield writer
        writer.close(deadline=soon())

    def group_settings(self, backend: Backend, *, topics: tuple[Topic, ...] = (SAMPLES,)) -> ReaderSettings:
        return ReaderSettings(topics=topics, assign="group", group=f"{backend.log.run}.readers", instance="reader-1")

    # Order and partitions

    def committed(self, backend: Backend) -> int | None:
        """What the readers' group has committed on the first partition."""
        return backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])[0].committed


class OnMemory:
    """Runs a suite in memory."""

    @pytest.fixture
    def backend(self, run_name: str) -> MemoryBackend:
        return MemoryBackend(run_name)


@pytest.mark.integration
class OnKafka:
    """Runs a suite on a real broker."""

    @pytest.fixture
    def backend(self, kafka_log: KafkaLog, services: ServicesInfo) -> KafkaBackend:
        return KafkaBackend(kafka_log, bootstrap=services.kafka_bootstrap)


def settle(queue: WorkQueue) -> None:
    """Commit, and take nothing until it is known how that ended."""

    def heard() -> bool:
        queue.commit()
        queue.take(0, deadline=Deadline.after(0.05))
        return not queue.has_uncommitted

    until(heard, what="the commit")
