"""Which records: parsed from the command line, judged from headers and keys wherever that is enough.

Role: `Selection` turns into offset ranges per topic (partition, offset, time) and into a filter (group, sample,
version, value, left out).
Invariants: ranges narrow what is read at all; a record is decoded for a filter only when it lacks the header; bytes
that cannot be decoded pass a filter on their key alone.
Failure: `SelectionError` says what was seen and which form is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ops.replay.sources import Source, decode
from schemas.errors import CodecError, SettingsError
from schemas.records import Record, Reward, Version
from schemas.routing import HEADER_SAMPLE_ID, HEADER_VERSION, id_of, version_of
from topics.catalog import BY_NAME, CATALOG, REWARDS, SAMPLES, SHADOW_REWARDS, WEIGHTS, Topic, partition_of
from topics.kafka.raw import RawRecord

Bounds = tuple[int | None, int | None]  # both included
Values = tuple[float | None, float | None]  # both included
WITH_VALUES = (REWARDS, SHADOW_REWARDS)


class SelectionError(SettingsError):
    """A selection is not of the form that is wanted, selects nothing there can be, or an id that is nowhere."""


@dataclass(frozen=True, kw_only=True)
class SampleRef:
    """A sample id; `run` is None when any will do."""

    run: str | None
    group: int
    member: int


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What to read. None and empty: no limit."""

    topics: tuple[Topic, ...] = ()
    partition: int | None = None
    offsets: Bounds = (None, None)
    times_ms: Bounds = (None, None)
    versions: tuple[Version, Version] | None = None
    group: int | None = None
    sample: SampleRef | None = None
    values: Values = (None, None)  # of rewards; a failure has none
    left_out: frozenset[tuple[str, int, int]] = field(default_factory=frozenset)  # (topic, partition, offset)

    @property
    def wanted_group(self) -> int | None:
        """The one group that is wanted."""
        return self.sample.group if self.sample is not None else self.group

    def chosen_topics(self) -> tuple[Topic, ...]:
        """The topics named, else those that can hold what is asked for."""
        if self.topics:
            return self.topics
        if self.values != (None, None):
            return WITH_VALUES
        if self.wanted_group is not None:
            return tuple(topic for topic in CATALOG if topic.partitions == "data")
        return (SAMPLES, WEIGHTS) if self.versions is not None else CATALOG

    def ranges(self, source: Source, topic: Topic) -> dict[int, tuple[int, int]]:
        """Offsets to read per partition: [first, end)."""
        found = {
            part: bounds for part, bounds in source.window(topic).items() if self._is_wanted(topic, part, source=source)
        }
        low, high = self.offsets
        if low is not None or high is not None:
            found = {
                part: (max(first, low if low is not None else first), min(end, high + 1 if high is not None else end))
                for part, (first, end) in found.items()
            }
        return self._within_times(source, topic, ranges=found)

    def matches(self, topic: Topic, record: RawRecord) -> bool:
        """Whether a record that lies in the ranges is wanted."""
        if (topic.name, record.partition, record.offset) in self.left_out:
            return False
        headers = dict(record.headers)
        return (
            self._matches_time(record)
            and self._matches_id(topic, record, headers=headers)
            and self._matches_version(topic, record, headers=headers)
            and self._matches_value(topic, record)
        )

    def _is_wanted(self, topic: Topic, partition: int, *, source: Source) -> bool:
        if self.partition is not None and partition != self.partition:
            return False
        group = self.wanted_group
        return group is None or topic.partitions == "one" or partition == partition_of(group, source.data_partitions)

    def _within_times(
        self, source: Source, topic: Topic, *, ranges: dict[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        """Begin at the first record of the time; its end is judged per record, as times need not be in order."""
        low = self.times_ms[0]
        if low is None or not ranges:
            return ranges
        first = source.first_at(topic, list(ranges), unix_ms=low)
        return {
            part: (max(begin, at), end) for part, (begin, end) in ranges.items() if (at := first.get(part)) is not None
        }

    def _matches_time(self, record: RawRecord) -> bool:
        low, high = self.times_ms
        return (low is None or record.unix_ms >= low) and (high is None or record.unix_ms <= high)

    def _matches_id(self, topic: Topic, record: RawRecord, *, headers: Mapping[str, bytes]) -> bool:
        group = self.wanted_group
        if group is None:
            return True
        if record.key != b"%d" % group:
            return False
        if self.sample is None:
            return True
        identity = headers.get(HEADER_SAMPLE_ID)
        text = identity.decode(errors="replace") if identity is not None else _own_id(topic, record)
        return text is None or _is_of(text, self.sample)

    def _matches_version(self, topic: Topic, record: RawRecord, *, headers: Mapping[str, bytes]) -> bool:
        if self.versions is None:
            return True
        said = headers.get(HEADER_VERSION)
        version = parse_version(said.decode(errors="replace")) if said is not None else _own_version(topic, record)
        return version is not None and self.versions[0] <= version <= self.versions[1]

    def _matches_value(self, topic: Topic, record: RawRecord) -> bool:
        low, high = self.values
        if low is None and high is None:
            return True
        decoded = _decoded(topic, record)
        value = decoded.value if isinstance(decoded, Reward) else None
        return value is not None and (low is None or value >= low) and (high is None or value <= high)


def parse_topics(names: tuple[str, ...]) -> tuple[Topic, ...]:
    """Topics by short name.

    Raises:
        SelectionError: a name is unknown.
    """
    for name in names:
        if name not in BY_NAME:
            raise SelectionError(f"topic {name!r:.200} is not one of a run's", hint=f"choose of: {', '.join(BY_NAME)}")
    return tuple(BY_NAME[name] for name in names)


def parse_bounds(text: str) -> Bounds:
    """`A..B`, `A..`, `..B` or `A`: whole numbers, both included.

    Raises:
        SelectionError: another form.
    """
    low, dots, high = text.partition("..")
    if not all(_is_number(part) for part in (low, high) if part):
        raise SelectionError(f"{text!r:.200} is no range of offsets", hint="write A..B, A.., ..B or A")
    first = int(low) if low else None
    return first, ((int(high) if high else None) if dots else first)


def parse_times(text: str) -> Bounds:
    """`A..B`, `A..` or `..B`: ISO 8601 (UTC unless it says otherwise) or Unix milliseconds, both included.

    Raises:
        SelectionError: another form.
    """
    low, dots, high = text.partition("..")
    if not dots:
        raise SelectionError(f"{text!r:.200} is no range of times", hint="write A..B, for example 2026-11-29T14:00..")
    return (_time_ms(low) if low else None), (_time_ms(high) if high else None)


def parse_versions(text: str) -> tuple[Version, Version]:
    """`L.S` or `L.S..L.S`, both included, in the order of versions.

    Raises:
        SelectionError: another form.
    """
    low, dots, high = text.partition("..")
    first = parse_version(low)
    last = parse_version(high) if dots else first
    if first is None or last is None:
        raise SelectionError(
            f"{text!r:.200} is no range of versions", hint="write LINEAGE.STEP or L.S..L.S, as in 1.3..1.9"
        )
    return first, last


def parse_version(text: str) -> Version | None:
    """`lineage.step`; None for anything else."""
    lineage, _, step = text.partition(".")
    return Version(lineage=int(lineage), step=int(step)) if _is_number(lineage) and _is_number(step) else None


def parse_sample(text: str) -> SampleRef:
    """`RUN/GROUP/MEMBER` or `GROUP/MEMBER`.

    Raises:
        SelectionError: another form.
    """
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(map(_is_number, parts[-2:])):
        raise SelectionError(
            f"{text!r:.200} is no sample id", hint="write RUN/GROUP/MEMBER or GROUP/MEMBER, as in demo/12/3"
        )
    return SampleRef(run=parts[0] if len(parts) == 3 else None, group=int(parts[-2]), member=int(parts[-1]))


def parse_place(text: str) -> tuple[str, int, int]:
    """`TOPIC/PARTITION/OFFSET`.

    Raises:
        SelectionError: another form.
    """
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    if topic not in BY_NAME or not (_is_number(partition) and _is_number(offset)):
        raise SelectionError(f"{text!r:.200} is no place", hint="write TOPIC/PARTITION/OFFSET, as in samples/3/17")
    return topic, int(partition), int(offset)


def _is_number(text: str) -> bool:
    """Whether it is a whole number that a record can hold, in plain digits."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def _time_ms(text: str) -> int:
    if _is_number(text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise SelectionError(
            f"{text!r:.200} is no time", hint="write ISO 8601, as in 2026-11-29T14:00:00, or Unix milliseconds"
        ) from None
    return round((parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def _is_of(identity: str, wanted: SampleRef) -> bool:
    """Whether `run/group[/member]` speaks of the sample; a record about its group does."""
    run, _, rest = identity.partition("/")
    group, _, member = rest.partition("/")
    return (
        (wanted.run is None or run == wanted.run) and group == str(wanted.group) and member in ("", str(wanted.member))
    )


def _decoded(topic: Topic, record: RawRecord) -> Record | None:
    try:
        return decode(topic, record)
    except CodecError:
        return None


def _own_id(topic: Topic, record: RawRecord) -> str | None:
    decoded = _decoded(topic, record)
    return None if decoded is None else id_of(decoded)


def _own_version(topic: Topic, record: RawRecord) -> Version | None:
    if record.value is None:  # the tombstone of a manifest has the version as its key
        return parse_version((record.key if record.key is not None else b"").decode(errors="replace"))
    decoded = _decoded(topic, record)
    return None if decoded is None else version_of(decoded)
