"""What a broker holds: partitions, transactions, consumer groups. Thread-safe through one lock.

Role: the shared state behind memory readers, writers and admins; several runs may share one.
Invariants: like Kafka, a transaction's end takes one offset in each partition it touched, and nothing at or after the
first record of an open transaction is readable.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

from topics.starts import Held

Place = tuple[str, int]  # (full topic name, partition)


@dataclass(eq=False)
class Transaction:
    """A transaction and what became of it."""

    status: Literal["open", "committed", "aborted"] = "open"
    places: set[Place] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One offset of a partition."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    unix_ms: int = 0
    transaction: Transaction | None = None
    marker: bool = False  # the end of a transaction, no record

    @property
    def readable(self) -> bool:
        """Whether a read-committed reader gets it, given that it is below the end."""
        return not self.marker and (self.transaction is None or self.transaction.status == "committed")


@dataclass
class Partition:
    """Records by offset; `earliest` moves up when old ones are deleted."""

    earliest: int = 0
    records: list[Stored] = field(default_factory=list)
    opened: dict[Transaction, int] = field(default_factory=dict)  # where each transaction begins, while it is open

    def append(self, record: Stored) -> None:
        """Add at the end."""
        if record.transaction is not None:
            self.opened.setdefault(record.transaction, self.earliest + len(self.records))
        self.records.append(record)

    def end(self) -> int:
        """Offset after the last readable record: the last stable offset."""
        self.opened = {each: begin for each, begin in self.opened.items() if each.status == "open"}
        return min(self.opened.values(), default=self.earliest + len(self.records))

    def holds(self, position: int) -> bool:
        """Whether reading can go on from there."""
        return self.earliest <= position <= self.end()

    def read(self, position: int, *, limit: int) -> tuple[list[tuple[int, Stored]], int]:
        """Up to `limit` readable records from `position` on, and the position after them and what is to skip."""
        found: list[tuple[int, Stored]] = []
        end = self.end()
        while position < end:
            record = self.records[position - self.earliest]
            if record.readable:
                if len(found) == limit:
                    break
                found.append((position, record))
            position += 1
        return found, position

    def delete_before(self, offset: int) -> None:
        """Remove everything below `offset`."""
        count = min(max(0, offset - self.earliest), len(self.records))
        del self.records[:count]
        self.earliest += count


@dataclass
class StoredTopic:
    """A topic that exists."""

    partitions: list[Partition]
    topic_id: str = field(default_factory=lambda: uuid4().hex)


@dataclass
class Group:
    """A consumer group: members in order of joining, who holds what, what is committed."""

    members: list[object] = field(default_factory=list)
    topics: dict[int, set[str]] = field(default_factory=dict)  # by id() of the member
    holders: dict[Place, object] = field(default_factory=dict)
    committed: dict[Place, Held] = field(default_factory=dict)


class MemoryBroker:
    """Topics, groups and transactional ids. Take `changed` around every use of the fields."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.topics: dict[str, StoredTopic] = {}
        self.groups: dict[str, Group] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}  # by transactional id
        self.coordinator_away = False  # set by a test: no group can commit, as while a broker restarts

    def end_transaction(self, transactional_id: str, *, status: Literal["committed", "aborted"]) -> None:
        """Commit or abort the open transaction of this id, if there is one."""
        with self.changed:
            transaction = self.open.pop(transactional_id, None)
            if transaction is None:
                return
            transaction.status = status
            for topic, partition in transaction.places:
                if topic in self.topics:
                    self.topics[topic].partitions[partition].append(Stored(marker=True))
            self.changed.notify_all()

    def delete_topic(self, name: str) -> None:
        """Remove a topic, and with it what groups have committed of it."""
        del self.topics[name]
        for group in self.groups.values():
            group.committed = {place: held for place, held in group.committed.items() if place[0] != name}

    def group(self, name: str) -> Group:
        """The group of this name, made when first asked for."""
        return self.groups.setdefault(name, Group())

    def share_of(self, group: Group, member: object) -> set[Place]:
        """What a member should hold: the partitions of each topic go round the members that want it."""
        share: set[Place] = set()
        for topic in group.topics.get(id(member), ()):
            takers = [each for each in group.members if topic in group.topics[id(each)]]
            count = len(self.topics[topic].partitions) if topic in self.topics else 0
            share |= {(topic, number) for number in range(count) if takers[number % len(takers)] is member}
        return share
