"""A run's log in memory.

Role: makes readers, writers and the admin of one run over a `MemoryBroker`; the test's own hooks on it.
Invariants: the same as `topics.kafka`; the contract suite runs on both.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import TopicMismatch
from topics.catalog import CATALOG, Topic, check_run_name, full_name, num_partitions
from topics.clock import Clock, Deadline, SystemClock
from topics.lag import partition_lag
from topics.log import PartitionLag, Positions, ReaderHooks, ReaderSettings, WriterSettings
from topics.memory.reader import MemoryReader
from topics.memory.store import MemoryBroker, Partition, StoredTopic
from topics.memory.writer import MemoryWriter


class MemoryLog:
    """The topics of one run.

    Args:
        run: run name.
        data_partitions: P.
        broker: shared between logs that see the same topics; a new one if not given.
        clock: stamps records.
        create_topics: create the run's topics at once; else `admin().ensure_topics()` does.
    """

    def __init__(
        self,
        *,
        run: str,
        data_partitions: int,
        broker: MemoryBroker | None = None,
        clock: Clock | None = None,
        create_topics: bool = True,
    ) -> None:
        check_run_name(run)
        self._run = run
        self._data_partitions = data_partitions
        self._clock = clock if clock is not None else SystemClock()
        self.broker = broker if broker is not None else MemoryBroker()
        if create_topics:
            self.admin().ensure_topics()

    @property
    def run(self) -> str:
        return self._run

    @property
    def data_partitions(self) -> int:
        return self._data_partitions

    def connect(self, *, deadline: Deadline) -> None:
        """Nothing to prove."""

    def reader(self, settings: ReaderSettings, *, hooks: ReaderHooks) -> MemoryReader:
        """A reader."""
        return MemoryReader(self.broker, settings, hooks=hooks, run=self._run, data_partitions=self._data_partitions)

    def writer(self, settings: WriterSettings) -> MemoryWriter:
        """A writer."""
        return MemoryWriter(
            self.broker, settings, run=self._run, data_partitions=self._data_partitions, clock=self._clock
        )

    def admin(self) -> MemoryAdmin:
        """The admin of the run's topics."""
        return MemoryAdmin(self.broker, run=self._run, data_partitions=self._data_partitions)

    def delete_records(self, before: Positions) -> None:
        """Remove all records below these offsets, as retention does."""
        with self.broker.changed:
            for (topic, partition), offset in before.items():
                name = next(full_name(self._run, each) for each in CATALOG if each.name == topic)
                self.broker.topics[name].partitions[partition].delete_before(offset)


class MemoryAdmin:
    """The admin of one run's topics."""

    def __init__(self, broker: MemoryBroker, *, run: str, data_partitions: int) -> None:
        self._broker = broker
        self._run = run
        self._data_partitions = data_partitions

    def ensure_topics(self) -> list[str]:
        """Create what is missing, check what exists; returns the full names created.

        Raises:
            TopicMismatch: another partition count.
        """
        created = []
        with self._broker.changed:
            for topic in CATALOG:
                name = full_name(self._run, topic)
                if name not in self._broker.topics:
                    count = num_partitions(topic, self._data_partitions)
                    self._broker.topics[name] = StoredTopic(partitions=[Partition() for _ in range(count)])
                    created.append(name)
        self.check_partitions()
        return created

    def check_partitions(self) -> None:
        """Refuse a partition count that changed in mid-stream.

        Raises:
            TopicMismatch: naming topic, count seen and count wanted.
        """
        for topic, stored in self._existing():
            seen, wanted = len(stored.partitions), num_partitions(topic, self._data_partitions)
            if seen != wanted:
                raise TopicMismatch(
                    f"topic {full_name(self._run, topic)} has partitions = {seen}, this run needs {wanted}; "
                    "nothing was changed",
                    hint="correct the topic or the setting, or choose a new run name",
                )

    def describe(self) -> dict[str, dict[int, tuple[int, int]]]:
        """(earliest, end) offsets per existing short topic name and partition."""
        with self._broker.changed:
            return {
                topic.name: {number: (each.earliest, each.end()) for number, each in enumerate(stored.partitions)}
                for topic, stored in self._existing()
            }

    def topic_ids(self) -> dict[str, str]:
        """Ids of the run's topics by short name."""
        return {topic.name: stored.topic_id for topic, stored in self._existing()}

    def lag(self, group: str, topics: Sequence[Topic]) -> list[PartitionLag]:
        """How far `group` is behind."""
        with self._broker.changed:
            described = self.describe()
            committed = {place: held.offset for place, held in self._broker.group(group).committed.items()}
            return [
                partition_lag(
                    topic.name,
                    number,
                    committed=committed.get((full_name(self._run, topic), number)),
                    retained=described.get(topic.name, {}).get(number),
                )
                for topic in topics
                for number in range(num_partitions(topic, self._data_partitions))
            ]

    def members(self, group: str) -> list[str]:
        """Client ids of the live members of a consumer group; none when there is no such group."""
        with self._broker.changed:
            return [each.client_id for each in self._broker.group(group).members if isinstance(each, MemoryReader)]

    def delete_topics(self) -> list[str]:
        """Delete all topics of the run; returns the full names deleted."""
        with self._broker.changed:
            names = [full_name(self._run, topic) for topic, _ in self._existing()]
            for name in names:
                self._broker.delete_topic(name)
            self._broker.changed.notify_all()
            return names

    def _existing(self) -> list[tuple[Topic, StoredTopic]]:
        with self._broker.changed:
            found = [(topic, self._broker.topics.get(full_name(self._run, topic))) for topic in CATALOG]
            return [(topic, stored) for topic, stored in found if stored is not None]
