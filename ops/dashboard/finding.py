"""Finds the records of one group without reading a topic: by number in `prompts`, by time everywhere else.

Role: a click on a sample id must not cost the reading of a million samples.
Data in: a run, a group, and where its outcomes stand. Data out: its records, decoded, with their places.
How: (1) prompts of a partition are written in the order of their numbers, so the prompt is found by interpolation, a
few records per look; (2) the broker stamps every record, and a sample is written after its prompt and before its
outcome, so the broker itself names the offsets between which it lies; credit bounds how much else lies there;
(3) shadow rewards may be given to the past at any time, so an index of blocks says where groups are in that topic.
Invariants: at most `MAX_READ` records of a topic are read per call; what was left out is said in `notes`.
Failure: errors of the log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from ops.replay.sources import Source, decode
from schemas.errors import CodecError
from schemas.records import PromptGroup, Record
from topics.catalog import LEDGER, PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, SHADOW_REWARDS, Topic, partition_of
from topics.kafka.raw import RawRecord

MAX_READ = 50_000
_LOOK = 32  # records around a guess
_MAX_LOOKS = 12
_SLACK_MS = 5_000  # brokers of a cluster stamp with their own clocks
_BLOCK = 256
_SHADOW_BUDGET = 200_000  # records of the shadow topic that are indexed per call


@dataclass(frozen=True, kw_only=True)
class Found:
    """A record and its place."""

    topic: str
    partition: int
    offset: int
    at_ms: int  # of the broker
    record: Record


@dataclass
class GroupRecords:
    """All records of a group that were found."""

    group: int
    partition: int
    prompt: Found | None = None
    records: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Finder:
    """See the module. Safe to use from several threads.

    Args:
        source: the run.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shadow = BlockIndex(source, SHADOW_REWARDS)

    def find(self, group: int, *, ledger: list[tuple[int, int]]) -> GroupRecords:
        """The records of a group.

        Args:
            ledger: offset and time of the broker of each of its outcomes.
        """
        partition = partition_of(group, self._source.data_partitions)
        found = GroupRecords(group=group, partition=partition)
        found.prompt = self._prompt(group, partition=partition)  # (1)
        for offset, _ in ledger:
            found.records += self._read(LEDGER, partition, bounds=(offset, offset + 1), group=group, notes=found.notes)
        begins = None if found.prompt is None else found.prompt.at_ms - _SLACK_MS
        ends = max((at for _, at in ledger), default=None)
        for topic in (SAMPLES, REWARDS, REFERENCE_SCORES):  # (2)
            bounds = self._between(topic, partition, begins=begins, ends=None if ends is None else ends + _SLACK_MS)
            found.records += self._read(topic, partition, bounds=bounds, group=group, notes=found.notes)
        for bounds in self._shadow.places(group, notes=found.notes):  # (3)
            found.records += self._read(SHADOW_REWARDS, partition, bounds=bounds, group=group, notes=found.notes)
        return found

    def _prompt(self, group: int, *, partition: int) -> Found | None:
        """By interpolation: offsets from `low` to `end` may hold it."""
        low, end = self._source.window(PROMPTS).get(partition, (0, 0))
        per_offset = self._source.data_partitions  # group numbers, or fewer: transactions leave marks between them
        guess = low + group // per_offset
        for _ in range(_MAX_LOOKS):
            if low >= end:
                return None
            first = max(low, min(guess - _LOOK // 2, end - 1))
            seen = list(_prompts(self._source, partition, bounds=(first, min(first + _LOOK, end))))
            match = next((each for each in seen if _group(each) == group), None)
            if match is not None:
                return match
            if not seen:  # marks only
                low, end = (low, first) if first > low else (min(first + _LOOK, end), end)
                guess = (low + end) // 2
            elif _group(seen[0]) > group:
                end = first
                guess = first - max(_LOOK, (_group(seen[0]) - group) // per_offset)
            elif _group(seen[-1]) < group:
                low = seen[-1].offset + 1
                guess = seen[-1].offset + (group - _group(seen[-1])) // per_offset
            else:
                return None
        return None

    def _between(self, topic: Topic, partition: int, *, begins: int | None, ends: int | None) -> tuple[int, int]:
        low, end = self._source.window(topic).get(partition, (0, 0))
        if low >= end:
            return (0, 0)
        if begins is not None:
            first = self._source.first_at(topic, [partition], unix_ms=begins)[partition]
            low = end if first is None else max(low, first)
        if ends is not None:
            last = self._source.first_at(topic, [partition], unix_ms=ends)[partition]
            end = end if last is None else min(end, last)
        return low, end

    def _read(
        self, topic: Topic, partition: int, *, bounds: tuple[int, int], group: int, notes: list[str]
    ) -> Iterator[Found]:
        first, end = bounds
        end = min(end, self._source.window(topic).get(partition, (0, 0))[1])  # beyond it, reading would wait
        if end - first > MAX_READ:
            notes.append(f"{topic.name}: only the first {MAX_READ:,} of {end - first:,} records were looked through")
            end = first + MAX_READ
        if first >= end:
            return
        for raw in self._source.read(topic, {partition: (first, end)}):
            if raw.key == b"%d" % group:
                record = _decoded(topic, raw)
                if record is not None:
                    yield _found(topic, raw, record=record)


class BlockIndex:
    """Which groups are in which stretch of a topic: lowest and highest number per `_BLOCK` offsets.

    Args:
        source: the run.
        topic: one of data; its keys are group numbers.
    """

    def __init__(self, source: Source, topic: Topic) -> None:
        self._source = source
        self._topic = topic
        self._lock = threading.Lock()
        self._blocks: dict[tuple[int, int], tuple[int, int]] = {}  # (partition, block) -> (lowest, highest)
        self._next: dict[int, int] = {}

    def places(self, group: int, *, notes: list[str]) -> list[tuple[int, int]]:
        """Offsets in which the group may be, as far as the topic is indexed; goes on indexing first."""
        partition = partition_of(group, self._source.data_partitions)
        with self._lock:
            left = self._extend(partition)
            if left:
                notes.append(f"{self._topic.name}: {left:,} records are not looked through yet; open this again")
            blocks = [
                block
                for (part, block), (low, high) in self._blocks.items()
                if part == partition and low <= group <= high
            ]
        return [(block * _BLOCK, (block + 1) * _BLOCK) for block in sorted(blocks)] if blocks else []

    def _extend(self, partition: int) -> int:
        """Index further; returns how many records are left."""
        low, end = self._source.window(self._topic).get(partition, (0, 0))
        first = max(low, self._next.get(partition, low))
        last = min(end, first + _SHADOW_BUDGET)
        if first < last:
            for raw in self._source.read(self._topic, {partition: (first, last)}):
                key = raw.key if raw.key is not None else b""
                if key.isdigit():
                    self._widen((partition, raw.offset // _BLOCK), int(key))
            self._next[partition] = last
        return end - last if end > last else 0

    def _widen(self, block: tuple[int, int], group: int) -> None:
        low, high = self._blocks.get(block, (group, group))
        self._blocks[block] = (min(low, group), max(high, group))


def _prompts(source: Source, partition: int, *, bounds: tuple[int, int]) -> Iterator[Found]:
    for raw in source.read(PROMPTS, {partition: bounds}):
        record = _decoded(PROMPTS, raw)
        if isinstance(record, PromptGroup):
            yield _found(PROMPTS, raw, record=record)


def _group(found: Found) -> int:
    return found.record.group if isinstance(found.record, PromptGroup) else -1


def _decoded(topic: Topic, raw: RawRecord) -> Record | None:
    try:
        return decode(topic, raw)
    except CodecError:
        return None


def _found(topic: Topic, raw: RawRecord, *, record: Record) -> Found:
    return Found(topic=topic.name, partition=raw.partition, offset=raw.offset, at_ms=raw.unix_ms, record=record)
