"""Where a predecessor stopped: numbering and cursor, from the ends of the prompts topic.

Role: makes a restart at any moment continue without a gap or a repeat. A source that another one came after, as in a
run in phases, goes on behind its own last item, as far back as the topic is kept.
Data in: the last record of each partition; data out: the next group number and the next index of the source.
Invariants: groups are dense and written in transactions, so the highest number is that of the last group written and
every lower one is there; partition p must end with the highest number that belongs on it, which is checked. Call it
after the predecessor was fenced, so that nothing is added afterwards.
Failure: `TopicMismatch` when the topic does not have that form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.sources import Source
from pipeline.sources.base import index_after
from pipeline.sources.mixing import COURSE_KEY
from schemas.errors import TopicMismatch
from schemas.records import PromptGroup
from topics.catalog import PROMPTS, partition_of
from topics.clock import Deadline
from topics.log import Log, ReaderHooks, ReaderSettings, TopicPartition

_LOOK_BACK = 16  # offsets before the end; transaction markers take some
_WIDEN = 16
_POLL_S = 0.25
_MAX_RECORDS = 1_000
_WINDOW = 4_096  # offsets of each partition read at a time, from the end, while the last item of a source is looked for


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Where to go on."""

    next_group: int = 0
    next_index: int = 0  # of the source
    course: str = ""  # of a mix: see pipeline.sources.mixing
    source_changed: bool = False  # the last record came from another source


def recover(log: Log, *, source: Source, hooks: ReaderHooks, deadline: Deadline) -> Cursor:
    """The cursor after the last group written.

    Raises:
        TopicMismatch: numbers are missing, deleted or on the wrong partition.
        DeadlineExceeded: reading took too long.
    """
    ranges = log.admin().describe().get(PROMPTS.name, {})
    last = _last_records(log, ranges, hooks=hooks, deadline=deadline)
    if not last:
        _check_never_had_any(ranges)
        return Cursor()
    newest = max(last.values(), key=lambda record: record.group)
    _check_dense(last, newest=newest.group, data_partitions=log.data_partitions)
    is_changed = newest.source != source.name
    own = _last_of(log, ranges, name=source.name, hooks=hooks, deadline=deadline) if is_changed else newest
    if own is None:
        return Cursor(next_group=newest.group + 1, source_changed=True)
    return Cursor(
        next_group=newest.group + 1,
        next_index=index_after(source, epoch=own.epoch, source_index=own.source_index),
        course=own.metadata.get(COURSE_KEY, ""),
        source_changed=is_changed,
    )


def _last_of(
    log: Log, ranges: Mapping[int, tuple[int, int]], *, name: str, hooks: ReaderHooks, deadline: Deadline
) -> PromptGroup | None:
    """The last record of a source that others came after; None: none is left.

    Windows are of offsets, and partitions of unequal length have other groups at equal distance from their ends: a
    record counts as the last one when every partition was read down to lower groups.
    """
    best: PromptGroup | None = None
    ends = {partition: end for partition, (first, end) in ranges.items() if end > first}
    while ends:
        starts = {partition: max(ranges[partition][0], end - _WINDOW) for partition, end in ends.items()}
        lowest: dict[int, int] = {}
        for partition, record in _read_all(log, starts=starts, ends=ends, hooks=hooks, deadline=deadline):
            lowest[partition] = min(record.group, lowest.get(partition, record.group))
            if record.source == name and (best is None or record.group > best.group):
                best = record
        seen = -1 if best is None else best.group
        ends = {
            partition: start
            for partition, start in starts.items()
            if start > ranges[partition][0] and lowest.get(partition, seen + 1) > seen
        }
    return best


def _last_records(
    log: Log, ranges: Mapping[int, tuple[int, int]], *, hooks: ReaderHooks, deadline: Deadline
) -> dict[int, PromptGroup]:
    """The last readable record of each partition that has one, found by looking back further and further."""
    last: dict[int, PromptGroup] = {}
    look_back = _LOOK_BACK
    missing = {partition for partition, (first, end) in ranges.items() if end > first}
    while missing:
        starts = {part: max(ranges[part][0], ranges[part][1] - look_back) for part in missing}
        found = _read(log, starts=starts, hooks=hooks, deadline=deadline)
        last.update(found)
        missing = {part for part in missing if part not in found and starts[part] > ranges[part][0]}
        look_back *= _WIDEN
    return last


def _read(log: Log, *, starts: Mapping[int, int], hooks: ReaderHooks, deadline: Deadline) -> dict[int, PromptGroup]:
    return dict(_read_all(log, starts=starts, ends=None, hooks=hooks, deadline=deadline))


def _read_all(
    log: Log,
    *,
    starts: Mapping[int, int],
    ends: Mapping[int, int] | None,
    hooks: ReaderHooks,
    deadline: Deadline,
) -> Iterator[tuple[int, PromptGroup]]:
    """Records from these offsets on by partition, in order; up to the end, or below the offsets given."""
    positions: dict[TopicPartition, int] = {(PROMPTS.name, part): start for part, start in starts.items()}
    settings = ReaderSettings(topics=(PROMPTS,), partitions=tuple(starts), positions=positions)
    reader = log.reader(settings, hooks=hooks)
    try:
        until = reader.end_positions() if ends is None else {(PROMPTS.name, part): end for part, end in ends.items()}
        while any(reader.positions().get(place, 0) < end for place, end in until.items()):
            deadline.check("the last records of the prompts topic")
            for envelope in reader.poll(_MAX_RECORDS, deadline=Deadline.after(_POLL_S, clock=deadline.clock)):
                is_below = envelope.offset < until[envelope.topic, envelope.partition]
                if isinstance(envelope.record, PromptGroup) and is_below:
                    yield envelope.partition, envelope.record
    finally:
        reader.close()


def _check_never_had_any(ranges: Mapping[int, tuple[int, int]]) -> None:
    emptied = sorted(partition for partition, (earliest, _) in ranges.items() if earliest > 0)
    if emptied:
        raise TopicMismatch(
            f"all records of prompts were deleted (partitions {', '.join(map(str, emptied))}), so the number of the "
            "next group cannot be known; groups would be numbered twice",
            hint="the topic was shortened by hand; start a new run",
        )


def _check_dense(last: Mapping[int, PromptGroup], *, newest: int, data_partitions: int) -> None:
    for group in range(max(0, newest - data_partitions + 1), newest + 1):
        partition = partition_of(group, data_partitions)
        seen = last[partition].group if partition in last else None
        if seen != group:
            raise TopicMismatch(
                f"partition {partition} of prompts ends with group {seen}, but group {newest} exists, so it should end "
                f"with {group}; groups would be numbered twice or left out",
                hint="the topic was changed by hand or made with another partition count; start a new run",
            )
