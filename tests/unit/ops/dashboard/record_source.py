"""Records in memory as the source of a run, with the real codec; times are those of a broker that stamps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ops.replay.sources import Window
from schemas.codec import encode, headers_of, key_of
from schemas.records import Record
from tests.unit.ops.little_run import NOW_MS, LittleRun
from topics.catalog import Topic
from topics.kafka.raw import RawRecord


class RecordSource:
    """Records are put in the order in which a broker gets them: each is a millisecond later than the one before.

    Offsets leave out every `gap`-th number, as marks of transactions do.
    """

    may_grow = True

    def __init__(self, run: str, *, data_partitions: int, gap: int = 0) -> None:
        self.run = run
        self.data_partitions = data_partitions
        self.num_read = 0
        self._gap = gap
        self._now_ms = NOW_MS
        self._records: dict[str, dict[int, list[RawRecord]]] = {}

    def put(self, topic: Topic, record: Record, *, partition: int, after_ms: int = 1) -> None:
        self._now_ms += after_ms
        records = self._records.setdefault(topic.name, {}).setdefault(partition, [])
        offset = records[-1].offset + 1 if records else 0
        if self._gap and offset % self._gap == self._gap - 1:
            offset += 1
        records.append(
            RawRecord(
                topic=topic.name,
                partition=partition,
                offset=offset,
                key=key_of(record),
                value=encode(record),
                headers=tuple(headers_of(record)),
                unix_ms=self._now_ms,
            )
        )

    def window(self, topic: Topic) -> Window:
        return {part: (0, records[-1].offset + 1) for part, records in self._records.get(topic.name, {}).items()}

    def read(self, topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        for part, (first, end) in ranges.items():
            assert end <= self.window(topic)[part][1], "a broker would wait for what is not written yet"
            for record in self._records.get(topic.name, {}).get(part, []):
                if first <= record.offset < end:
                    self.num_read += 1
                    yield record

    def first_at(self, topic: Topic, partitions: Sequence[int], *, unix_ms: int) -> dict[int, int | None]:
        return {
            part: next(
                (each.offset for each in self._records.get(topic.name, {}).get(part, []) if each.unix_ms >= unix_ms),
                None,
            )
            for part in partitions
        }


def source_of(run: LittleRun) -> RecordSource:
    """A hand-made run as a source."""
    source = RecordSource("little", data_partitions=2)
    for topic, partition, _, record in run:
        source.put(topic, record, partition=partition)
    return source
