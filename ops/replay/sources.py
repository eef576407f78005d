"""Where a run's records come from: a broker, or the folder of a dump.

Role: one interface for `replay` and `audit`, so that both work on a live run, on a copy of it and on a dump.
Data in and out: short topic names and offset ranges in; `RawRecord`s out; `decode` judges bytes as every reader does.
Invariants: nothing is committed and no consumer group is used; reading a source twice gives the same records.
Failure: `RunNotFound` when there is no such run or dump, `LogError`s of the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from schemas.errors import SettingsError
from schemas.records import Record
from topics.catalog import CATALOG, LEDGER, Topic, full_name
from topics.dead_letters import readable
from topics.kafka.raw import RawLog, RawRecord

Window = dict[int, tuple[int, int]]  # partition -> (earliest, end) offsets


class RunNotFound(SettingsError):
    """There is no such run on the broker or in the folder of runs, or no dump in a folder."""


class Source(Protocol):
    """Records of one run."""

    @property
    def run(self) -> str:
        """Run name."""
        ...

    @property
    def data_partitions(self) -> int:
        """Number of partitions of a data topic (P)."""
        ...

    @property
    def may_grow(self) -> bool:
        """Whether looking again may show more."""
        ...

    def window(self, topic: Topic) -> Window:
        """Offsets there are now, per partition; empty when the topic does not exist."""
        ...

    def read(self, topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        """Records of offset ranges, in order within a partition."""
        ...

    def first_at(self, topic: Topic, partitions: Sequence[int], *, unix_ms: int) -> dict[int, int | None]:
        """Offset of the first record at or after a time; None: there is none."""
        ...


class KafkaSource:
    """A run on a broker.

    Raises:
        RunNotFound: it has no topics.
        LogUnavailable: no broker answers.
    """

    may_grow = True

    def __init__(self, log: RawLog, *, run: str) -> None:
        self.run = run
        self._log = log
        counts = log.partition_counts()
        self._counts = {topic.name: counts.get(full_name(run, topic)) for topic in CATALOG}
        data = [self._counts[topic.name] for topic in CATALOG if topic.partitions == "data"]
        known = [count for count in data if count is not None]
        if not known:
            others = sorted({name.split(".")[1] for name in counts if name.startswith("rlweave.")})
            raise RunNotFound(
                f"run {run!r} has no topics on this broker",
                hint=f"runs there: {', '.join(others) if others else 'none'}",
            )
        ledger = self._counts[LEDGER.name]
        self.data_partitions = ledger if ledger is not None else known[0]

    def window(self, topic: Topic) -> Window:
        """See `Source`."""
        count = self._counts[topic.name]
        places = [(full_name(self.run, topic), partition) for partition in range(count or 0)]
        return {partition: bounds for (_, partition), bounds in self._log.ranges(places).items()}

    def read(self, topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        """See `Source`."""
        name = full_name(self.run, topic)
        return self._log.read({(name, partition): bounds for partition, bounds in ranges.items()})

    def first_at(self, topic: Topic, partitions: Sequence[int], *, unix_ms: int) -> dict[int, int | None]:
        """See `Source`."""
        name = full_name(self.run, topic)
        found = self._log.first_at([(name, partition) for partition in partitions], unix_ms=unix_ms)
        return {partition: offset for (_, partition), offset in found.items()}


def decode(topic: Topic, record: RawRecord) -> Record | None:
    """The record, judged as every reader judges it; None: a tombstone.

    Raises:
        CodecError: it is none of this topic's.
    """
    return readable(record.value, topic.records, tombstones=topic.cleanup == "compact")
