"""Dead letters and lost offsets: one suite for every log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.codec import encode
from schemas.errors import OffsetsLost
from tests.contract.logs import (
    Backend,
    LogContract,
    OnKafka,
    OnMemory,
    P,
    Told,
    drain,
    groups_of,
    lineage,
    read,
    sample,
    soon,
    write_samples,
)
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.log import (
    LostOffsets,
    Reader,
    ReaderSettings,
    Writer,
)


class Losses(LogContract):
    """What cannot be read is told, never passed over in silence."""

    def test_a_dead_letter_is_passed_and_the_lag_reaches_zero(
        self, backend: Backend, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        """Case 6."""
        told = Told()
        for group in range(0, 40, P):
            writer.write(SAMPLES, sample(group))
        writer.write_raw(SAMPLES, key=b"k", value=b"\xc3\x01 no record", partition=0, headers=[("h", b"v")])
        for group in range(0, 500 * P, P):
            writer.write(SAMPLES, sample(group, 1))
        writer.flush(deadline=soon())
        reader = open_reader(self.group_settings(backend), told)
        envelopes = drain(reader)
        assert [each.offset for each in envelopes] == [*range(10), *range(11, 511)]
        (letter,) = told.dead_letters
        assert (letter.topic, letter.partition, letter.offset) == (f"rlweave.{backend.log.run}.samples", 0, 10)
        assert (letter.key, letter.value, letter.headers) == (b"k", b"\xc3\x01 no record", {"h": b"v"})
        assert letter.error
        assert letter.reader == "reader-1"
        reader.commit(reader.positions())
        reader.close()
        lag = backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])
        assert [(each.committed, each.end, each.lag_records) for each in lag[:1]] == [(511, 511, 0)]
        assert drain(open_reader(self.group_settings(backend))) == []

    def test_a_record_of_another_topic_and_one_without_value_are_dead_letters(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        told = Told()
        writer.write_raw(SAMPLES, key=None, value=encode(lineage(1)), partition=0)
        writer.write_raw(SAMPLES, key=b"0", value=None, partition=0)
        writer.write(SAMPLES, sample(0))
        writer.flush(deadline=soon())
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,)), told))) == [0]
        assert [each.error.split(",")[0] for each in told.dead_letters] == [
            "the topic carries Sample",
            "the record has no value",
        ]
        assert told.dead_letters[0].key is None

    # Retention (Case 8)

    def test_lost_offsets_are_counted_and_reading_resumes_at_the_earliest(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        """Case 8."""
        write_samples(backend.log, range(0, 100 * P, P))
        reader = open_reader(self.group_settings(backend))
        drain(reader)
        reader.commit({("samples", 0): 100})
        reader.close()
        write_samples(backend.log, range(0, 400 * P, P))
        backend.delete_before({("samples", 0): 300})
        told = Told()
        envelopes = drain(open_reader(self.group_settings(backend), told))
        assert [each.offset for each in envelopes] == list(range(300, 500))
        assert told.lost == [LostOffsets(topic="samples", partition=0, wanted=100, resumed_at=300)]
        assert told.lost[0].num_lost == 200

    def test_offsets_lost_while_paused_are_counted(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        """Case 8."""
        told = Told()
        write_samples(backend.log, range(0, 100 * P, P))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,)), told)
        assert len(read(reader, 10)) == 10
        reader.seek({("samples", 0): 10})
        reader.pause([("samples", 0)])
        assert reader.poll(10, deadline=Deadline.after(0.2)) == []
        backend.delete_before({("samples", 0): 60})
        reader.resume([("samples", 0)])
        assert [each.offset for each in drain(reader)] == list(range(60, 100))
        assert [each.num_lost for each in told.lost] == [50]

    def test_on_lost_stop_refuses_to_go_on(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        """Case 8."""
        write_samples(backend.log, range(0, 100 * P, P))
        backend.delete_before({("samples", 0): 30})
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(0,), positions={("samples", 0): 10}, on_lost="stop")
        reader = open_reader(settings)
        with pytest.raises(OffsetsLost, match=r"offset 10 of samples \[0\] is no longer retained: 20 offsets are lost"):
            drain(reader)

    def test_a_position_beyond_the_end_is_refused(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, [0])
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(0,), positions={("samples", 0): 10})
        reader = open_reader(settings)
        with pytest.raises(OffsetsLost, match=r"offset 10 of samples \[0\] is beyond the end 1"):
            drain(reader)


class TestLossesInMemory(OnMemory, Losses):
    pass


class TestLossesOnKafka(OnKafka, Losses):
    pass
