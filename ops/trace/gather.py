"""Finds the records that tell of one group or one version, without reading the whole run.

Data in: a `Source` (a broker or a dump) and a group or version. Data out: records with their times.
Invariants: nothing is committed. Of data topics one partition is read, from the time at which the group's prompt was
made; of events what lies around. Group n is at offset n / P of its partition or behind it, which is where the search
for its prompt begins.
Failure: `TraceError` when nothing of it is left; bytes that cannot be decoded are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ops.replay.sources import Source, decode
from ops.trace.target import TraceError
from pipeline.history import Lineages
from schemas.errors import CodecError
from schemas.reasons import Result
from schemas.records import (
    LineageStarted,
    Manifest,
    Outcome,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    StageEvent,
    Version,
)
from topics.catalog import (
    EVENTS,
    LEDGER,
    PROMPTS,
    REFERENCE_SCORES,
    REWARDS,
    SAMPLES,
    SHADOW_REWARDS,
    WEIGHTS,
    Topic,
    partition_of,
)
from topics.kafka.raw import RawRecord

SKEW_MS = 60_000  # by which clocks may differ, and a version may be served later
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Stamped(Generic[R]):
    """A record and the time of its place on the log."""

    record: R
    unix_ms: int
    offset: int


@dataclass(kw_only=True)
class GroupRecords:
    """All that tells of a group."""

    group: int
    prompt: Stamped[PromptGroup] | None = None
    samples: list[Stamped[Sample]] = field(default_factory=list)
    rewards: list[Stamped[Reward]] = field(default_factory=list)
    references: list[Stamped[ReferenceScore]] = field(default_factory=list)
    outcome: Stamped[Outcome] | None = None  # in the history that survives
    void: list[Stamped[Outcome]] = field(default_factory=list)  # of branches that were given up
    version: VersionRecords | None = None  # the version it was trained into


@dataclass(kw_only=True)
class VersionRecords:
    """All that tells of a version."""

    version: Version
    manifest: Stamped[Manifest] | None = None
    closed_ms: int | None = None  # time of an outcome of its step; the same transaction
    events: list[StageEvent] = field(default_factory=list)


def gather_group(source: Source, group: int) -> GroupRecords:
    """Everything of a group.

    Raises:
        TraceError: the run has no such group.
    """
    found = GroupRecords(group=group, prompt=_prompt(source, group))
    _add_outcomes(source, found)
    since_ms = None if found.prompt is None else found.prompt.unix_ms - SKEW_MS
    for stamped in _of_group(source, SAMPLES, group=group, since_ms=since_ms):
        if isinstance(stamped.record, Sample):
            found.samples.append(_typed(stamped, stamped.record))
    for topic in (REWARDS, SHADOW_REWARDS, REFERENCE_SCORES):
        for stamped in _of_group(source, topic, group=group, since_ms=since_ms):
            if isinstance(stamped.record, Reward):
                found.rewards.append(_typed(stamped, stamped.record))
            elif isinstance(stamped.record, ReferenceScore):
                found.references.append(_typed(stamped, stamped.record))
    if found.prompt is None and not found.samples and found.outcome is None:
        raise TraceError(
            f"run {source.run} has no group {group}",
            hint=f"groups are numbered from 0; what is there: `rlweave topics --run {source.run}`",
        )
    if found.outcome is not None:
        closed = found.outcome.record
        version = Version(lineage=closed.lineage, step=closed.step)
        found.version = _version(source, version, closed_ms=found.outcome.unix_ms)
    return found


def gather_version(source: Source, version: Version) -> VersionRecords:
    """Everything of a version.

    Raises:
        TraceError: the run has no such version.
    """
    manifest = _manifest(source, version)
    # The manifest of an old version may be pruned; outcomes of its step were written in the same transaction.
    at_ms = _closed_ms(source, version) if manifest is None else manifest.unix_ms
    if at_ms is None:
        raise TraceError(
            f"run {source.run} has no version {version}",
            hint=f"those there are: `rlweave replay --run {source.run} --topic weights`",
        )
    return _version(source, version, closed_ms=at_ms)


def _version(source: Source, version: Version, *, closed_ms: int) -> VersionRecords:
    events = list(_events(source, first_ms=closed_ms - 2 * SKEW_MS, last_ms=closed_ms + SKEW_MS))
    manifest = _manifest(source, version)
    return VersionRecords(version=version, manifest=manifest, closed_ms=closed_ms, events=events)


def _prompt(source: Source, group: int) -> Stamped[PromptGroup] | None:
    partition = partition_of(group, source.data_partitions)
    first, end = source.window(PROMPTS).get(partition, (0, 0))
    begin = max(first, group // source.data_partitions)
    key = b"%d" % group
    for raw in source.read(PROMPTS, {partition: (begin, end)}) if begin < end else ():
        if raw.key == key and isinstance(record := _decoded(PROMPTS, raw), PromptGroup):
            return Stamped(record=record, unix_ms=raw.unix_ms, offset=raw.offset)
    return None


def _add_outcomes(source: Source, found: GroupRecords) -> None:
    """Every lineage is on every partition of the ledger, so one of them tells what survives."""
    partition, key = partition_of(found.group, source.data_partitions), b"%d" % found.group
    lineages, outcomes = Lineages(), list[Stamped[Outcome]]()
    for raw in _whole(source, LEDGER, partition=partition):
        if raw.key is not None and raw.key != key and raw.key.isdigit():
            continue
        record = _decoded(LEDGER, raw)
        if isinstance(record, LineageStarted):
            lineages.add(record)
        elif isinstance(record, Outcome) and record.group == found.group:
            outcomes.append(Stamped(record=record, unix_ms=raw.unix_ms, offset=raw.offset))
    for outcome in outcomes:
        if lineages.survives(outcome.record.lineage, outcome.record.step):
            found.outcome = outcome
        else:
            found.void.append(outcome)


def _closed_ms(source: Source, version: Version) -> int | None:
    """Time of an outcome of the version's step, on any partition."""
    for partition in range(source.data_partitions):
        for raw in _whole(source, LEDGER, partition=partition):
            if _is_trained(_decoded(LEDGER, raw), version=version):
                return raw.unix_ms
    return None


def _is_trained(record: Record | None, *, version: Version) -> bool:
    if not isinstance(record, Outcome) or record.result != Result.TRAINED:
        return False
    return (record.lineage, record.step) == (version.lineage, version.step)


def _manifest(source: Source, version: Version) -> Stamped[Manifest] | None:
    key, found = str(version).encode(), None
    for raw in _whole(source, WEIGHTS, partition=0):
        if raw.key == key and isinstance(record := _decoded(WEIGHTS, raw), Manifest):
            found = Stamped(record=record, unix_ms=raw.unix_ms, offset=raw.offset)
    return found


def _events(source: Source, *, first_ms: int, last_ms: int) -> Iterator[StageEvent]:
    for raw in _since(source, EVENTS, partition=0, since_ms=first_ms):
        if raw.unix_ms > last_ms:
            return
        if isinstance(record := _decoded(EVENTS, raw), StageEvent):
            yield record


def _of_group(source: Source, topic: Topic, *, group: int, since_ms: int | None) -> Iterator[Stamped[Record]]:
    partition, key = partition_of(group, source.data_partitions), b"%d" % group
    for raw in _since(source, topic, partition=partition, since_ms=since_ms):
        if raw.key == key and (record := _decoded(topic, raw)) is not None:
            yield Stamped(record=record, unix_ms=raw.unix_ms, offset=raw.offset)


def _since(source: Source, topic: Topic, *, partition: int, since_ms: int | None) -> Iterator[RawRecord]:
    first, end = source.window(topic).get(partition, (0, 0))
    if first >= end:
        return
    if since_ms is not None:
        at = source.first_at(topic, [partition], unix_ms=max(0, since_ms)).get(partition)
        if at is None:
            return
        first = max(first, at)
    yield from source.read(topic, {partition: (first, end)})


def _whole(source: Source, topic: Topic, *, partition: int) -> Iterator[RawRecord]:
    return _since(source, topic, partition=partition, since_ms=None)


def _decoded(topic: Topic, raw: RawRecord) -> Record | None:
    try:
        return decode(topic, raw)
    except CodecError:
        return None


def _typed(stamped: Stamped[Record], record: R) -> Stamped[R]:
    return Stamped(record=record, unix_ms=stamped.unix_ms, offset=stamped.offset)


def attempts_of(samples: Sequence[Stamped[Sample]]) -> list[str]:
    """Attempts in the order of their first sample on the log."""
    return list(dict.fromkeys(each.record.attempt for each in sorted(samples, key=lambda each: each.offset)))
