"""Records of every shipped schema version, and of one that nobody here knows, mixed in one partition (Case 15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from schemas.codec import MARKER, decode, encode
from schemas.records import Record, Sample
from schemas.registry import directory_of, shipped
from tests.contract.logs import Backend, LogContract, OnKafka, OnMemory, Told, drain, soon
from tests.unit.schemas.examples import EXAMPLES
from tests.unit.schemas.make_golden import GOLDEN
from topics.catalog import CATALOG, SAMPLES, Topic
from topics.log import Reader, ReaderSettings, Writer

LATER = b"\x07later!!"  # fingerprint of a schema that a later release may write


def frames_of(topic: Topic) -> Iterator[bytes]:
    """Bytes that releases of the past wrote, and that this one writes, of every record type of a topic."""
    for example in EXAMPLES:
        name = type(example).__name__
        if type(example) in topic.records:
            for version in shipped().versions_of(name):
                yield (GOLDEN / f"{directory_of(name)}_v{version.number}.bin").read_bytes()
            yield encode(example)


class Versions(LogContract):
    """A reader resolves each record from the schema it was written with, or does not read it at all."""

    @pytest.mark.parametrize("topic", CATALOG, ids=lambda topic: topic.name)
    def test_old_and_new_records_are_read_and_unknown_ones_are_dead_letters(
        self, backend: Backend, open_reader: Callable[..., Reader], writer: Writer, topic: Topic
    ) -> None:
        """Case 15."""
        known = list(frames_of(topic))
        assert known
        unknown = [MARKER + LATER + frame[10:] for frame in known]
        for number, pair in enumerate(zip(known, unknown, strict=True)):
            for value in (*pair, pair[0]):
                writer.write_raw(topic, key=b"%d" % number, value=value, partition=0)
        writer.flush(deadline=soon())
        told = Told()
        found = drain(open_reader(ReaderSettings(topics=(topic,), partitions=(0,)), told))
        expected: list[Record] = [decode(frame) for frame in known for _ in range(2)]
        assert [each.record for each in found] == expected
        assert [letter.value for letter in told.dead_letters] == unknown
        assert all("unknown schema fingerprint" in letter.error for letter in told.dead_letters)

    def test_a_field_that_the_writer_did_not_know_has_its_default(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        """Case 15: Sample v1 does not say whether weights were checked: they were."""
        for number in (1, 2):
            value = (GOLDEN / f"sample_v{number}.bin").read_bytes()
            writer.write_raw(SAMPLES, key=b"7", value=value, partition=3)
        writer.flush(deadline=soon())
        found = drain(open_reader(ReaderSettings(topics=(SAMPLES,), partitions=(3,))))
        runs = [each.record.version_runs for each in found if isinstance(each.record, Sample)]
        assert len(runs) == 2
        assert [run.verified for run in runs[0]] == [True] * len(runs[0])
        assert [run.version for run in runs[0]] == [run.version for run in runs[1]]


class TestVersionsInMemory(OnMemory, Versions):
    pass


class TestVersionsOnKafka(OnKafka, Versions):
    pass
