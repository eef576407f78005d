"""What a log is to the rest of the system: protocols that Kafka and the in-memory log both follow.

Role: stages, tools and tests are written against these names; only `topics.kafka` knows a client library.
Data in and out: records (`schemas.records`) inside `Envelope`s; positions are (topic name, partition) -> offset.
Invariants: no auto-commit; readers see committed transactions only; every delivery error surfaces; an undecodable
record becomes a dead letter and reading goes on; an offset that fell out of retention is reported with the exact
count lost, and reading resumes at the earliest retained record, never at the end (promise 12).
Failure: errors are those of `schemas.errors`; nothing above this layer sees a library's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from schemas.records import DeadLetter, Record
from topics.catalog import Topic
from topics.clock import Deadline

TopicPartition = tuple[str, int]  # (short topic name, partition)
Positions = Mapping[TopicPartition, int]  # next offset to read


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A record with the place it came from."""

    topic: str  # short name
    partition: int
    offset: int
    key: bytes | None
    record: Record | None  # None: a tombstone of a compacted topic
    headers: Mapping[str, bytes]
    unix_ms: int
    num_bytes: int  # of the encoded value


@dataclass(frozen=True, kw_only=True)
class LostOffsets:
    """Records that a reader wanted and retention had removed."""

    topic: str
    partition: int
    wanted: int
    resumed_at: int

    @property
    def num_lost(self) -> int:
        """Offsets between the wanted and the earliest retained one (transaction markers included)."""
        return self.resumed_at - self.wanted


@dataclass(frozen=True, kw_only=True)
class UnreadableBatch:
    """A batch that cannot be unpacked: damaged, or larger than the client unpacks. Reading goes on behind it."""

    topic: str
    partition: int
    first: int
    end: int  # offset after its last record
    why: str

    @property
    def num_lost(self) -> int:
        """Records of the batch that a reader did not get."""
        return self.end - self.first


@dataclass(frozen=True, kw_only=True)
class RecreatedTopic:
    """A topic was deleted and made anew under its name, which its id tells: a position in the old one means nothing.

    Lost is what the old topic held from `held` on; nobody can say how much that was.
    """

    topic: str
    partition: int
    held: int  # next offset to read, in the topic that is gone
    resumed_at: int  # the earliest record of the new one
    topic_id: str  # of the new one


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """How to read.

    `assign="self"`: the reader takes all partitions of `topics` (or those numbered in `partitions`) and starts at
    `positions`, else at `start`; its commits, if `group` is given, serve lag and nothing else.
    `assign="group"`: the broker assigns partitions and committed offsets decide; `start` applies where there is none.
    """

    topics: tuple[Topic, ...]
    assign: Literal["self", "group"] = "self"
    group: str | None = None  # the full consumer group id; required for assign="group"
    start: Literal["earliest", "latest"] = "earliest"
    positions: Positions = field(default_factory=dict)
    partitions: tuple[int, ...] | None = None  # self-assigned readers: only these partition numbers
    on_lost: Literal["resume", "stop"] = "resume"
    session_timeout_s: float = 10.0
    buffer_bytes: int = 64 * 1024 * 1024  # most bytes the client prefetches
    instance: str = ""  # of the stage; named in dead letters
    topic_check_s: float = 10.0  # between looks at the topics' ids: how late a topic made anew is noticed while reading
    client_id: str | None = None  # what `Admin.members` shows of this reader; absent: the instance


@dataclass(frozen=True, kw_only=True)
class ReaderHooks:
    """What a reader tells its owner, on the owner's own thread, from inside `poll`."""

    dead_letter: Callable[[DeadLetter], None]
    lost: Callable[[LostOffsets], None]
    unreadable: Callable[[UnreadableBatch], None] = lambda _: None  # a dead letter tells of it as well
    recreated: Callable[[RecreatedTopic], None] = lambda _: None  # then reading goes on at the new topic's earliest
    assigned: Callable[[Sequence[TopicPartition]], None] = lambda _: None
    revoked: Callable[[Sequence[TopicPartition]], None] = lambda _: None  # called before they go: commit here
    commit_delayed: Callable[[str], None] = lambda _: None  # a work queue's commit failed and is tried again; why


class Reader(Protocol):
    """Reads records in order per partition."""

    def poll(self, max_records: int, *, deadline: Deadline) -> list[Envelope]:
        """Up to `max_records` records; fewer, or none, when the deadline ends first. Returns as soon as any are there.

        Raises:
            OffsetsLost: with `on_lost="stop"`.
            LogError: the client failed in a way that retrying does not mend.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop delivering from these until `resume`; membership is kept."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Deliver from these again, from where they stood."""
        ...

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions this reader has now."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Next offset to be returned, per assigned partition that has one."""
        ...

    def seek(self, positions: Positions) -> None:
        """Go on from these offsets; the partitions must be assigned."""
        ...

    def commit(self, positions: Positions) -> None:
        """Commit synchronously.

        Raises:
            Fenced: the partitions belong to another member by now.
            LogUnavailable: the broker, or the group's coordinator, is away; later it may go through.
            LogError: the broker refused.
        """
        ...

    def begin_commit(self, positions: Positions) -> Future[None]:
        """Commit without waiting for it, in the order of the calls; errors of the broker are in what it gives.

        Raises:
            Fenced: the partitions are not assigned.
            LogUnavailable: the last commit is still under way, long after it was begun.
            LogError: the reader has no group.
        """
        ...

    def end_positions(self) -> dict[TopicPartition, int]:
        """Offset after the last readable record, per assigned partition, asked from the broker."""
        ...

    def close(self) -> None:
        """Leave the group without committing."""
        ...


class Writer(Protocol):
    """Writes records; the partition and key follow from the record (catalog and codec)."""

    def start(self, *, deadline: Deadline) -> None:
        """Take over the transactional id, fencing an older writer; else done by the first transaction.

        Raises:
            DeliveryError: no broker answered, or it refused.
        """
        ...

    def write(self, topic: Topic, record: Record, *, partition: int | None = None) -> None:
        """Queue one record; `partition` only for records of a data topic that have no group (LineageStarted).

        Raises:
            RecordTooLarge: before anything is sent.
            DeliveryError: an earlier record failed, or the queue stays full for the delivery limit.
            LogError: the topic does not carry such records, or the partition is missing or not the record's own.
        """
        ...

    def write_raw(
        self,
        topic: Topic,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Queue bytes as they are: tombstones, and copies made by `replay`."""
        ...

    def flush(self, *, deadline: Deadline) -> None:
        """Wait until everything queued is acknowledged.

        Raises:
            DeliveryError: a record failed, or the deadline ended and it is unknown whether records were written.
        """
        ...

    def transaction(self, *, deadline: Deadline) -> AbstractContextManager[None]:
        """All writes inside become readable together, or none does. Commits at the end, aborts on an exception.

        Raises:
            Fenced: a newer writer of the same transactional id exists; nothing was written.
            DeliveryError: the commit failed or its result is unknown; the process must restart from durable state.
        """
        ...

    def close(self, *, deadline: Deadline) -> None:
        """Flush, then let go of the connection; what is open in a transaction is aborted."""
        ...


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """How to write."""

    transactional_id: str | None = None  # given: transactional, and fences an older writer of the same id
    transaction_timeout_s: float = 60.0
    delivery_timeout_s: float = 30.0
    linger_ms: float = 5.0
    buffer_bytes: int = 128 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class PartitionLag:
    """How far a group is behind on one partition, in readable records; None: unknown, which is not zero."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag_records: int | None


class Admin(Protocol):
    """Topics of one run."""

    def ensure_topics(self) -> list[str]:
        """Create what is missing, check what exists; returns the full names created.

        Raises:
            TopicMismatch: naming topic, property, the value seen and the one wanted.
        """
        ...

    def check_partitions(self) -> None:
        """Refuse a partition count that changed in mid-stream.

        Raises:
            TopicMismatch: naming topic, count seen and count wanted.
        """
        ...

    def describe(self) -> dict[str, dict[int, tuple[int, int]]]:
        """(earliest, end) offsets per existing short topic name and partition."""
        ...

    def topic_ids(self) -> dict[str, str]:
        """Broker ids of the run's topics: another id under the same name means it was recreated."""
        ...

    def lag(self, group: str, topics: Sequence[Topic]) -> list[PartitionLag]:
        """How far a group is behind, per partition of these topics."""
        ...

    def members(self, group: str) -> list[str]:
        """Client ids of the live members of a consumer group; none when there is no such group.

        Raises:
            LogError: the broker did not say.
        """
        ...

    def delete_topics(self) -> list[str]:
        """Delete the run's topics; returns the full names."""
        ...


class Log(Protocol):
    """A run's log on one broker cluster. Constructing it does no I/O; `connect` proves the connection."""

    @property
    def run(self) -> str:
        """Run name, part of every topic name."""
        ...

    @property
    def data_partitions(self) -> int:
        """Number of partitions of a data topic (P)."""
        ...

    def connect(self, *, deadline: Deadline) -> None:
        """Raises:
        LogUnavailable: naming the address and what to do.
        """
        ...

    def reader(self, settings: ReaderSettings, *, hooks: ReaderHooks) -> Reader:
        """A reader; no I/O before its first use."""
        ...

    def writer(self, settings: WriterSettings) -> Writer:
        """A writer; no I/O before its first use."""
        ...

    def admin(self) -> Admin:
        """What creates, checks and deletes the run's topics."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A log that counts what is written to it and read from it."""

    @property
    def written_bytes(self) -> Mapping[str, int]:
        """Encoded bytes of the values written so far, by short topic name; the same object each time."""
        ...

    @property
    def read_bytes(self) -> Mapping[str, int]:
        """As `written_bytes`, of the values that its readers got."""
        ...
