"""What the client library keeps for its owner, without a broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.records import DeadLetter
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.kafka import offsets, reader
from topics.kafka.client import Connection, reader_config
from topics.kafka.offsets import AdminHandle
from topics.kafka.reader import KafkaReader
from topics.kafka.refusals import Refusals
from topics.log import LostOffsets, ReaderHooks, ReaderSettings

PLACE = ("samples", 0)


def nowhere() -> Connection:
    return Connection(bootstrap="127.0.0.1:1", run="r", data_partitions=1, overrides={})


class Noted(Refusals):
    """Counts what comes out of the library."""

    num_noted = 0

    def note(self, error: KafkaError) -> None:
        assert error
        Noted.num_noted += 1


@pytest.mark.parametrize(("buffer_bytes", "fetch_bytes"), [(2**26, 2**20), (2**23, 2**17), (2**16, 2**16)])
def test_who_reads_little_ahead_asks_for_little_of_each_partition(buffer_bytes: int, fetch_bytes: int) -> None:
    config = reader_config(nowhere(), ReaderSettings(topics=(SAMPLES,), buffer_bytes=buffer_bytes))
    assert config["fetch.message.max.bytes"] == fetch_bytes


@pytest.mark.parametrize("kind", ["asker", "client"])
def test_errors_do_not_pile_up_in_clients_that_are_only_asked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "Refusals", Noted)
    monkeypatch.setattr(Noted, "num_noted", 0)
    handle, deadline = AdminHandle(nowhere()), Deadline.after(10)
    while Noted.num_noted == 0:
        deadline.check("an error of a broker that is not there")
        asked = handle.asker("g") if kind == "asker" else handle.client()
        with pytest.raises(KafkaException):
            asked.list_topics(timeout=0.1)


def test_a_bad_batch_of_a_partition_that_is_begun_anew_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun anew since its topic was made anew; else the batch is met again."""

    def never(*_: object, **__: object) -> int:
        raise AssertionError("its end was looked for")

    def told(what: DeadLetter | LostOffsets) -> None:
        raise AssertionError(what)

    monkeypatch.setattr(reader, "end_of_batch", never)
    hooks = ReaderHooks(dead_letter=told, lost=told)
    made = KafkaReader(nowhere(), ReaderSettings(topics=(SAMPLES,)), hooks=hooks, handle=AdminHandle(nowhere()))
    made._client.consumer.incremental_assign(made._places([PLACE]))
    made._parts.begin({PLACE: 5})
    made._unreadable[PLACE] = (5, KafkaError(KafkaError._BAD_COMPRESSION, "damaged"))
    made.seek({PLACE: 3})
    made._pass_unreadable()
    assert not made._unreadable
    made.close()
