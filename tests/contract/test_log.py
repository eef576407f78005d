"""Order, positions, and what a writer refuses: one suite for every log."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.codec import encode
from schemas.errors import DeliveryError, LogError, RecordTooLarge
from schemas.records import Command
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
    places,
    read,
    sample,
    soon,
    write_samples,
)
from topics.catalog import COMMANDS, DEAD_LETTERS, LEDGER, MAX_RECORD_BYTES, REWARDS, SAMPLES
from topics.log import (
    Reader,
    ReaderSettings,
    Writer,
    WriterSettings,
)


class Order(LogContract):
    """Where records go and in which order they come back."""

    def test_a_group_is_on_partition_n_mod_p_in_the_order_written(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(40))
        envelopes = drain(open_reader(ReaderSettings(topics=(SAMPLES,))))
        for partition in range(P):
            of_partition = [each for each in envelopes if each.partition == partition]
            assert groups_of(of_partition) == list(range(partition, 40, P))
            assert [each.offset for each in of_partition] == list(range(10))
        assert envelopes[0].key == str(groups_of(envelopes)[0]).encode()
        assert envelopes[0].headers["sid"].startswith(b"r/")
        assert all(each.num_bytes > 0 and each.topic == "samples" for each in envelopes)

    def test_a_reader_of_some_partitions_from_given_positions(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(40))
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(1, 3), positions={("samples", 1): 7})
        envelopes = drain(open_reader(settings))
        assert sorted(groups_of(envelopes)) == sorted([*range(29, 40, P), *range(3, 40, P)])

    def test_start_latest_skips_what_is_there(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(8))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), start="latest"))
        assert drain(reader) == []
        write_samples(backend.log, [8, 9])
        assert sorted(groups_of(read(reader, 2))) == [8, 9]

    def test_seek_goes_back_and_forth(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(40))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,)))
        assert len(read(reader, 3)) == 3
        reader.seek({("samples", 0): 8})
        assert reader.positions() == {("samples", 0): 8}
        assert places(drain(reader)) == [(0, 8), (0, 9)]
        reader.seek({("samples", 0): 0})
        assert len(drain(reader)) == 10

    def test_copies_of_one_id_are_delivered_as_they_are(
        self, backend: Backend, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        for _ in range(3):
            writer.write(SAMPLES, sample(5))
        writer.write_raw(SAMPLES, key=b"5", value=encode(sample(5)), partition=2)
        writer.flush(deadline=soon())
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [5, 5, 5, 5]

    def test_a_tombstone_is_an_envelope_without_a_record(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        command = Command(run="r", target="all", kind="drain", epoch=1, seq=0, reason="", issued_unix_ms=0)
        writer.write(COMMANDS, command)
        writer.write_raw(COMMANDS, key=b"all/drain", value=None, partition=0)
        writer.flush(deadline=soon())
        envelopes = drain(open_reader(ReaderSettings(topics=(COMMANDS,))))
        assert [each.record for each in envelopes] == [command, None]

    # Writing

    def test_a_too_large_record_is_refused_and_not_sent(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        small = replace(SAMPLES, max_record_bytes=1000)
        with pytest.raises(RecordTooLarge, match=r"bytes exceeds the 1000 bytes that topic samples takes"):
            writer.write(small, sample(0, text="x" * 2000))
        writer.write(small, sample(1))
        writer.flush(deadline=soon())
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [1]

    def test_the_largest_record_passes_and_so_does_its_dead_letter(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        told = Told()
        value = os.urandom(MAX_RECORD_BYTES)
        writer.write_raw(SAMPLES, key=b"0", value=value, partition=0)
        writer.flush(deadline=soon())
        assert drain(open_reader(ReaderSettings(topics=(SAMPLES,)), told)) == []
        assert [each.value for each in told.dead_letters] == [value]
        writer.write(DEAD_LETTERS, told.dead_letters[0])
        writer.flush(deadline=soon())
        assert [each.record for each in drain(open_reader(ReaderSettings(topics=(DEAD_LETTERS,))))] == told.dead_letters

    def test_a_record_without_a_group_needs_a_partition(
        self, open_reader: Callable[..., Reader], writer: Writer
    ) -> None:
        with pytest.raises(LogError, match="LineageStarted has no group"):
            writer.write(LEDGER, lineage(1))
        with pytest.raises(LogError, match="partitions 0 to 3, got 4"):
            writer.write(LEDGER, lineage(1), partition=4)
        for partition in range(P):
            writer.write(LEDGER, lineage(1), partition=partition)
        writer.flush(deadline=soon())
        envelopes = drain(open_reader(ReaderSettings(topics=(LEDGER,))))
        assert sorted(each.partition for each in envelopes) == list(range(P))

    def test_a_record_goes_only_where_it_belongs(self, writer: Writer) -> None:
        with pytest.raises(LogError, match="topic rewards carries Reward, got Sample"):
            writer.write(REWARDS, sample(0))
        with pytest.raises(LogError, match="group 5 belongs on partition 1 of samples, got 2"):
            writer.write(SAMPLES, sample(5), partition=2)

    def test_a_failed_delivery_surfaces(self, backend: Backend) -> None:
        writer = backend.log_without_topics().writer(WriterSettings(delivery_timeout_s=1.0))
        writer.write(SAMPLES, sample(0))
        with pytest.raises(DeliveryError, match="samples"):
            writer.flush(deadline=soon())
        writer.close(deadline=soon())


class TestOrderInMemory(OnMemory, Order):
    pass


class TestOrderOnKafka(OnKafka, Order):
    pass
