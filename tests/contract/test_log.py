"""One behaviour suite for every log: in memory, and on a real Kafka broker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from ops.services.model import ServicesInfo
from schemas.codec import encode
from schemas.errors import DeliveryError, Fenced, LogError, OffsetsLost, RecordTooLarge, TopicMismatch
from schemas.records import Command, DeadLetter, LineageStarted, Sample, SamplingParams
from topics.catalog import COMMANDS, DEAD_LETTERS, LEDGER, MAX_RECORD_BYTES, REWARDS, SAMPLES, Topic, full_name
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
    TopicPartition,
    Writer,
    WriterSettings,
)
from topics.memory import MemoryBroker, MemoryLog
from topics.queue import WorkQueue

P = 4
LIMIT_S = 30.0


class Backend(Protocol):
    """What the suite needs of a log besides the log itself."""

    log: Log

    def log_without_topics(self) -> Log: ...

    def delete_before(self, positions: Positions) -> None: ...

    def add_partitions(self, topic: Topic, *, count: int) -> None: ...


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


@dataclass
class Told:
    """What the hooks of a reader were told."""

    dead_letters: list[DeadLetter] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    assigned: list[TopicPartition] = field(default_factory=list)
    revoked: list[TopicPartition] = field(default_factory=list)

    def hooks(self) -> ReaderHooks:
        return ReaderHooks(
            dead_letter=self.dead_letters.append,
            lost=self.lost.append,
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

    def test_a_group_is_on_partition_n_mod_p_in_the_order_written(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(40))
        envelopes = drain(open_reader(ReaderSettings(topics=(SAMPLES,))))
        for partition in range(P):
            of_partition = [each for each in envelopes if each.partition == partition]
            assert groups_of(of_partition) == list(range(partition, 40, P))
            assert [each.offset for each in of_partition] == list(range(10))
        assert envelopes[0].key == str(groups_of(envelopes)[0]).encode()
        assert envelopes[0].headers["sid"].startswith(b"r/")
        assert all(each.num_bytes > 0 and each.topic == "samples" for each in envelopes)

    def test_a_reader_of_some_partitions_from_given_positions(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(40))
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(1, 3), positions={("samples", 1): 7})
        envelopes = drain(open_reader(settings))
        assert sorted(groups_of(envelopes)) == sorted([*range(29, 40, P), *range(3, 40, P)])

    def test_start_latest_skips_what_is_there(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(8))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), start="latest"))
        assert drain(reader) == []
        write_samples(backend.log, [8, 9])
        assert sorted(groups_of(read(reader, 2))) == [8, 9]

    def test_seek_goes_back_and_forth(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(40))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,)))
        assert len(read(reader, 3)) == 3
        reader.seek({("samples", 0): 8})
        assert reader.positions() == {("samples", 0): 8}
        assert places(drain(reader)) == [(0, 8), (0, 9)]
        reader.seek({("samples", 0): 0})
        assert len(drain(reader)) == 10

    def test_copies_of_one_id_are_delivered_as_they_are(
        self, backend: Backend, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        for _ in range(3):
            writer.write(SAMPLES, sample(5))
        writer.write_raw(SAMPLES, key=b"5", value=encode(sample(5)), partition=2)
        writer.flush(deadline=soon())
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [5, 5, 5, 5]

    def test_a_tombstone_is_an_envelope_without_a_record(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        command = Command(run="r", target="all", kind="drain", epoch=1, seq=0, reason="", issued_unix_ms=0)
        writer.write(COMMANDS, command)
        writer.write_raw(COMMANDS, key=b"all/drain", value=None, partition=0)
        writer.flush(deadline=soon())
        envelopes = drain(open_reader(ReaderSettings(topics=(COMMANDS,))))
        assert [each.record for each in envelopes] == [command, None]

    # Writing

    def test_a_too_large_record_is_refused_and_not_sent(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        small = replace(SAMPLES, max_record_bytes=1000)
        with pytest.raises(RecordTooLarge, match=r"bytes exceeds the 1000 bytes that topic samples takes"):
            writer.write(small, sample(0, text="x" * 2000))
        writer.write(small, sample(1))
        writer.flush(deadline=soon())
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [1]

    def test_the_largest_record_passes_and_so_does_its_dead_letter(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        told = Told()
        value = os.urandom(MAX_RECORD_BYTES)
        writer.write_raw(SAMPLES, key=b"0", value=value, partition=0)
        writer.flush(deadline=soon())
        assert drain(open_reader(ReaderSettings(topics=(SAMPLES,)), told)) == []
        assert [each.value for each in told.dead_letters] == [value]
        writer.write(DEAD_LETTERS, told.dead_letters[0])
        writer.flush(deadline=soon())
        assert [each.record for each in drain(open_reader(ReaderSettings(topics=(DEAD_LETTERS,))))] == told.dead_letters

    def test_a_record_without_a_group_needs_a_partition(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        with pytest.raises(LogError, match="LineageStarted has no group"):
            writer.write(LEDGER, lineage(1))
        with pytest.raises(LogError, match="partitions 0 to 3, got 4"):
            writer.write(LEDGER, lineage(1), partition=4)
        for partition in range(P):
            writer.write(LEDGER, lineage(1), partition=partition)
        writer.flush(deadline=soon())
        envelopes = drain(open_reader(ReaderSettings(topics=(LEDGER,))))
        assert sorted(each.partition for each in envelopes) == list(range(P))

    def test_a_record_goes_only_where_it_belongs(self, writer: Writer) -> None:
        with pytest.raises(LogError, match="topic rewards carries Reward, got Sample"):
            writer.write(REWARDS, sample(0))
        with pytest.raises(LogError, match="group 5 belongs on partition 1 of samples, got 2"):
            writer.write(SAMPLES, sample(5), partition=2)

    def test_a_failed_delivery_surfaces(self, backend: Backend) -> None:
        writer = backend.log_without_topics().writer(WriterSettings(delivery_timeout_s=1.0))
        writer.write(SAMPLES, sample(0))
        with pytest.raises(DeliveryError, match="samples"):
            writer.flush(deadline=soon())
        writer.close(deadline=soon())

    # Transactions

    def test_a_transaction_becomes_readable_as_a_whole(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,)))
        with writer.transaction(deadline=soon()):
            for group in range(8):
                writer.write(SAMPLES, sample(group))
            writer.flush(deadline=soon())
            assert drain(reader) == []
        assert sorted(groups_of(drain(reader))) == list(range(8))
        writer.close(deadline=soon())

    def test_an_aborted_transaction_is_never_readable(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))

        def fail() -> None:
            raise KeyError

        with pytest.raises(KeyError):
            write_in_transaction(writer, 0, then=fail)
        with writer.transaction(deadline=soon()):
            writer.write(SAMPLES, sample(4))
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [4]
        writer.close(deadline=soon())

    def test_a_refused_record_aborts_the_transaction(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        too_small = replace(SAMPLES, max_record_bytes=10)
        with pytest.raises(RecordTooLarge):
            write_in_transaction(writer, 0, then=lambda: writer.write(too_small, sample(1)))
        assert drain(open_reader(ReaderSettings(topics=(SAMPLES,)))) == []
        writer.close(deadline=soon())

    def test_a_newer_writer_fences_the_older_one(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        settings = WriterSettings(transactional_id=f"{backend.log.run}.tx")
        old, new = backend.log.writer(settings), backend.log.writer(settings)
        with old.transaction(deadline=soon()):
            old.write(SAMPLES, sample(0))
        new.start(deadline=soon())
        with pytest.raises(Fenced, match="taken over"):
            write_in_transaction(old, 4)
        with pytest.raises(Fenced):
            write_in_transaction(old, 8)
        with new.transaction(deadline=soon()):
            new.write(SAMPLES, sample(12))
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [0, 12]
        old.close(deadline=soon())
        new.close(deadline=soon())

    def test_starting_a_newer_writer_ends_an_open_transaction(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        settings = WriterSettings(transactional_id=f"{backend.log.run}.tx")
        old, new = backend.log.writer(settings), backend.log.writer(settings)
        with pytest.raises(Fenced):
            write_in_transaction(old, 0, then=lambda: new.start(deadline=soon()))
        assert drain(open_reader(ReaderSettings(topics=(SAMPLES,)))) == []
        old.close(deadline=soon())
        new.close(deadline=soon())

    def test_a_transactional_writer_does_not_write_outside_a_transaction(self, backend: Backend) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        writer.start(deadline=soon())
        with pytest.raises(DeliveryError):
            writer.write(SAMPLES, sample(0))
        writer.close(deadline=soon())

    # Poison records (cases, row 6)

    def test_a_dead_letter_is_passed_and_the_lag_reaches_zero(
        self, backend: Backend, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        told = Told()
        for group in range(0, 40, P):
            writer.write(SAMPLES, sample(group))
        writer.write_raw(SAMPLES, key=b"k", value=b"\xc3\x01 no record", partition=0, headers=[("h", b"v")])
        for group in range(0, 500 * P, P):
            writer.write(SAMPLES, sample(group, 1))
        writer.flush(deadline=soon())
        reader = open_reader(self.group_settings(backend), told)
        envelopes = drain(reader)
        assert [each.offset for each in envelopes] == [*range(10), *range(11, 511)]
        (letter,) = told.dead_letters
        assert (letter.topic, letter.partition, letter.offset) == (f"rlweave.{backend.log.run}.samples", 0, 10)
        assert (letter.key, letter.value, letter.headers) == (b"k", b"\xc3\x01 no record", {"h": b"v"})
        assert letter.error
        assert letter.reader == "reader-1"
        reader.commit(reader.positions())
        reader.close()
        lag = backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])
        assert [(each.committed, each.end, each.lag_records) for each in lag[:1]] == [(511, 511, 0)]
        assert drain(open_reader(self.group_settings(backend))) == []

    def test_a_record_of_another_topic_and_one_without_value_are_dead_letters(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        told = Told()
        writer.write_raw(SAMPLES, key=None, value=encode(lineage(1)), partition=0)
        writer.write_raw(SAMPLES, key=b"0", value=None, partition=0)
        writer.write(SAMPLES, sample(0))
        writer.flush(deadline=soon())
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,)), told))) == [0]
        assert [each.error.split(",")[0] for each in told.dead_letters] == [
            "the topic carries Sample",
            "the record has no value",
        ]
        assert told.dead_letters[0].key is None

    # Retention (cases, row 8)

    def test_lost_offsets_are_counted_and_reading_resumes_at_the_earliest(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(0, 100 * P, P))
        reader = open_reader(self.group_settings(backend))
        drain(reader)
        reader.commit({("samples", 0): 100})
        reader.close()
        write_samples(backend.log, range(0, 400 * P, P))
        backend.delete_before({("samples", 0): 300})
        told = Told()
        envelopes = drain(open_reader(self.group_settings(backend), told))
        assert [each.offset for each in envelopes] == list(range(300, 500))
        assert told.lost == [LostOffsets(topic="samples", partition=0, wanted=100, resumed_at=300)]
        assert told.lost[0].num_lost == 200

    def test_offsets_lost_while_paused_are_counted(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        told = Told()
        write_samples(backend.log, range(0, 100 * P, P))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,)), told)
        assert len(read(reader, 10)) == 10
        reader.seek({("samples", 0): 10})
        reader.pause([("samples", 0)])
        assert reader.poll(10, deadline=Deadline.after(0.2)) == []
        backend.delete_before({("samples", 0): 60})
        reader.resume([("samples", 0)])
        assert [each.offset for each in drain(reader)] == list(range(60, 100))
        assert [each.num_lost for each in told.lost] == [50]

    def test_on_lost_stop_refuses_to_go_on(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(0, 100 * P, P))
        backend.delete_before({("samples", 0): 30})
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(0,), positions={("samples", 0): 10}, on_lost="stop")
        reader = open_reader(settings)
        with pytest.raises(OffsetsLost, match=r"offset 10 of samples \[0\] is no longer retained: 20 offsets are lost"):
            drain(reader)

    def test_a_position_beyond_the_end_is_refused(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, [0])
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(0,), positions={("samples", 0): 10})
        reader = open_reader(settings)
        with pytest.raises(OffsetsLost, match=r"offset 10 of samples \[0\] is beyond the end 1"):
            drain(reader)

    # Groups

    def test_a_restart_redelivers_only_the_uncommitted(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(40))
        reader = open_reader(self.group_settings(backend))
        assert len(drain(reader)) == 40
        reader.commit({("samples", 0): 10, ("samples", 1): 4})
        reader.close()
        again = drain(open_reader(self.group_settings(backend)))
        assert sorted(places(again)) == sorted(
            [(1, offset) for offset in range(4, 10)] + [(part, offset) for part in (2, 3) for offset in range(10)]
        )

    def test_pause_keeps_the_membership(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        told = Told()
        reader = open_reader(self.group_settings(backend), told)
        until(lambda: not reader.poll(1, deadline=Deadline.after(0.1)) and len(told.assigned) == P, what="assignment")
        reader.pause([("samples", 0), ("samples", 1)])
        write_samples(backend.log, range(40))
        others = read(reader, 20)
        assert {each.partition for each in others} == {2, 3}
        assert reader.poll(10, deadline=Deadline.after(0.3)) == []
        assert sorted(reader.assignment()) == [("samples", part) for part in range(P)]
        reader.resume([("samples", 0), ("samples", 1)])
        assert {each.partition for each in read(reader, 20)} == {0, 1}
        assert told.revoked == []

    def test_members_share_partitions_and_take_over(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        told = [Told(), Told()]
        first, second = (open_reader(self.group_settings(backend), each) for each in told)
        got: list[Envelope] = []

        def shared() -> bool:
            for reader in (first, second):
                got.extend(reader.poll(100, deadline=Deadline.after(0.1)))
            return len(first.assignment()) == len(second.assignment()) == P // 2

        until(shared, what="both members to hold half")
        assert not set(first.assignment()) & set(second.assignment())
        lost_to_first = set(second.assignment())
        with pytest.raises(Fenced, match="cannot commit"):
            first.commit(dict.fromkeys(lost_to_first, 0))
        write_samples(backend.log, range(40))
        until(lambda: shared() and len(got) == 40, what="all records")
        assert all((each.topic, each.partition) in {*first.assignment(), *second.assignment()} for each in got)
        second.close()
        assert set(told[1].revoked) == lost_to_first
        seen: list[Envelope] = []

        def taken_over() -> bool:
            seen.extend(first.poll(100, deadline=Deadline.after(0.1)))
            return len(first.assignment()) == P and len(seen) >= 20

        until(taken_over, what="the first to take over and get the uncommitted again")
        assert {(each.topic, each.partition) for each in seen} == lost_to_first

    # Lag (cases, row 47)

    def test_a_drained_transactional_topic_has_no_lag(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        for group in range(3):
            with writer.transaction(deadline=soon()):
                writer.write(SAMPLES, sample(group * P))
        writer.close(deadline=soon())
        reader = open_reader(self.group_settings(backend))
        assert len(drain(reader)) == 3
        reader.commit(reader.positions())
        lag = backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])
        assert [each.lag_records for each in lag] == [0] * P
        assert (lag[0].committed, lag[0].end) == (6, 6)

    def test_lag_without_commits_is_unknown(self, backend: Backend) -> None:
        write_samples(backend.log, range(8))
        lag = backend.log.admin().lag(f"{backend.log.run}.nobody", [SAMPLES])
        assert [(each.committed, each.end, each.lag_records) for each in lag] == [(None, 2, None)] * P

    def test_lag_does_not_count_what_retention_removed(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(0, 100 * P, P))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), group=f"{backend.log.run}.readers"))
        drain(reader)
        reader.commit({("samples", 0): 10})
        backend.delete_before({("samples", 0): 60})
        lag = backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])
        assert (lag[0].committed, lag[0].lag_records) == (10, 40)

    # Topics (cases, row 11)

    def test_topics_are_created_once_and_described(self, backend: Backend) -> None:
        admin = backend.log.admin()
        assert admin.ensure_topics() == []
        write_samples(backend.log, range(6))
        assert admin.describe()["samples"] == {0: (0, 2), 1: (0, 2), 2: (0, 1), 3: (0, 1)}
        assert len(admin.describe()) == len(admin.topic_ids()) == 9

    def test_a_changed_partition_count_is_refused(self, backend: Backend) -> None:
        backend.log.admin().check_partitions()
        backend.add_partitions(SAMPLES, count=8)

        def refused() -> bool:
            try:
                backend.log.admin().check_partitions()
            except TopicMismatch as error:
                return "samples has partitions = 8, this run needs 4" in error.message
            return False

        until(refused, what="the changed count to be refused")
        with pytest.raises(TopicMismatch):
            backend.log.admin().ensure_topics()

    def test_a_recreated_topic_has_another_id(self, backend: Backend) -> None:
        admin = backend.log.admin()
        before = admin.topic_ids()
        assert len(admin.delete_topics()) == 9
        until(lambda: not admin.describe(), what="the topics to be gone")
        assert len(admin.ensure_topics()) == 9
        after = admin.topic_ids()
        assert before.keys() == after.keys()
        assert not set(before.values()) & set(after.values())

    # Work queue

    def test_the_queue_hands_out_within_its_budget_and_commits_the_lowest_unfinished(self, backend: Backend) -> None:
        write_samples(backend.log, range(0, 10 * P, P))
        queue = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=3)
        taken: list[Envelope] = []
        take_until(queue, taken, num_records=3)
        assert queue.take(10, deadline=Deadline.after(0.3)) == []
        queue.done(taken[1])
        queue.done(taken[2])
        queue.commit()
        assert self.committed(backend) == 0
        take_until(queue, taken, num_records=5)
        queue.done(taken[0])
        queue.commit()
        assert self.committed(backend) == 3
        assert [each.offset for each in taken] == [0, 1, 2, 3, 4]
        assert queue.unfinished_over(0.0) == taken[3:]
        queue.close()
        again = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=100)
        redone: list[Envelope] = []
        take_until(again, redone, num_records=7)
        for envelope in redone:
            again.done(envelope)
        again.close()
        assert self.committed(backend) == 10

    def test_work_in_flight_on_a_revoked_partition_is_no_longer_owned(self, backend: Backend) -> None:
        write_samples(backend.log, range(40))
        first = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=100)
        taken: list[Envelope] = []
        take_until(first, taken, num_records=40)
        for envelope in taken:
            if envelope.offset < 5:
                first.done(envelope)
        second = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=100)
        redelivered: list[Envelope] = []

        def moved() -> bool:
            taken.extend(first.take(100, deadline=Deadline.after(0.1)))
            redelivered.extend(second.take(100, deadline=Deadline.after(0.1)))
            return len(second.reader.assignment()) == P // 2 and len(redelivered) == 10

        until(moved, what="half of the partitions to move, with what was unfinished on them")
        theirs = {partition for _, partition in second.reader.assignment()}
        assert {each.partition for each in redelivered} == theirs
        assert min(each.offset for each in redelivered) == 5
        for envelope in taken:
            assert first.is_owned(envelope) == (envelope.offset >= 5 and envelope.partition not in theirs)
        assert first.num_in_flight == 20
        first.close()
        second.close()

    def committed(self, backend: Backend) -> int | None:
        return backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])[0].committed


class TestMemoryLog(LogContract):
    @pytest.fixture
    def backend(self, run_name: str) -> MemoryBackend:
        return MemoryBackend(run_name)


@pytest.mark.integration
class TestKafkaLog(LogContract):
    @pytest.fixture
    def backend(self, kafka_log: KafkaLog, services: ServicesInfo) -> KafkaBackend:
        return KafkaBackend(kafka_log, bootstrap=services.kafka_bootstrap)
