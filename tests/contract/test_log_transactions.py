"""Transactions and fencing: one suite for every log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.errors import DeliveryError, Fenced, RecordTooLarge
from tests.contract.logs import (
    Backend,
    LogContract,
    OnKafka,
    OnMemory,
    drain,
    groups_of,
    sample,
    soon,
    write_in_transaction,
)
from topics.catalog import SAMPLES
from topics.log import (
    Reader,
    ReaderSettings,
    WriterSettings,
)


class Transactions(LogContract):
    """All or nothing, and one writer at a time."""

    def test_a_transaction_becomes_readable_as_a_whole(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,)))
        with writer.transaction(deadline=soon()):
            for group in range(8):
                writer.write(SAMPLES, sample(group))
            writer.flush(deadline=soon())
            assert drain(reader) == []
        assert sorted(groups_of(drain(reader))) == list(range(8))
        writer.close(deadline=soon())

    def test_an_aborted_transaction_is_never_readable(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))

        def fail() -> None:
            raise KeyError

        with pytest.raises(KeyError):
            write_in_transaction(writer, 0, then=fail)
        with writer.transaction(deadline=soon()):
            writer.write(SAMPLES, sample(4))
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [4]
        writer.close(deadline=soon())

    def test_a_refused_record_aborts_the_transaction(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        too_small = replace(SAMPLES, max_record_bytes=10)
        with pytest.raises(RecordTooLarge):
            write_in_transaction(writer, 0, then=lambda: writer.write(too_small, sample(1)))
        assert drain(open_reader(ReaderSettings(topics=(SAMPLES,)))) == []
        writer.close(deadline=soon())

    def test_a_newer_writer_fences_the_older_one(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        settings = WriterSettings(transactional_id=f"{backend.log.run}.tx")
        old, new = backend.log.writer(settings), backend.log.writer(settings)
        with old.transaction(deadline=soon()):
            old.write(SAMPLES, sample(0))
        new.start(deadline=soon())
        with pytest.raises(Fenced, match="taken over"):
            write_in_transaction(old, 4)
        with pytest.raises(Fenced):
            write_in_transaction(old, 8)
        with new.transaction(deadline=soon()):
            new.write(SAMPLES, sample(12))
        assert groups_of(drain(open_reader(ReaderSettings(topics=(SAMPLES,))))) == [0, 12]
        old.close(deadline=soon())
        new.close(deadline=soon())

    def test_starting_a_newer_writer_ends_an_open_transaction(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        settings = WriterSettings(transactional_id=f"{backend.log.run}.tx")
        old, new = backend.log.writer(settings), backend.log.writer(settings)
        with pytest.raises(Fenced):
            write_in_transaction(old, 0, then=lambda: new.start(deadline=soon()))
        assert drain(open_reader(ReaderSettings(topics=(SAMPLES,)))) == []
        old.close(deadline=soon())
        new.close(deadline=soon())

    def test_a_transactional_writer_does_not_write_outside_a_transaction(self, backend: Backend) -> None:
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        writer.start(deadline=soon())
        with pytest.raises(DeliveryError):
            writer.write(SAMPLES, sample(0))
        writer.close(deadline=soon())


class TestTransactionsInMemory(OnMemory, Transactions):
    pass


class TestTransactionsOnKafka(OnKafka, Transactions):
    pass
