"""What only a real cluster shows: absence, foreign topic settings, a broker that is not there for a while."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ops.services.model import ServicesInfo
from schemas.errors import DeliveryError, LogUnavailable, TopicMismatch
from schemas.records import Command, Sample, SamplingParams
from topics.catalog import CATALOG, COMMANDS, PROMPTS, SAMPLES, Topic, full_name
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import Envelope, ReaderHooks, ReaderSettings, WriterSettings

QUIET = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def log_of_nobody(nobody: str) -> KafkaLog:
    return KafkaLog(nobody, run="nobody", data_partitions=2)


def test_an_absent_broker_is_named_within_ten_seconds(nobody: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(LogUnavailable, match=nobody) as caught:
        log_of_nobody(nobody).connect(deadline=Deadline.after(1.0))
    assert time.monotonic() - began_s < 10.0
    assert "rlweave services up" in caught.value.hint
    assert "kafka.bootstrap" in caught.value.hint


def test_a_reader_waits_an_absent_broker_out(nobody: str) -> None:
    reader = log_of_nobody(nobody).reader(ReaderSettings(topics=(SAMPLES,)), hooks=QUIET)
    assert reader.poll(10, deadline=Deadline.after(1.0)) == []
    assert reader.poll(10, deadline=Deadline.after(0.1)) == []
    reader.close()


@pytest.mark.slow
def test_lag_is_unknown_while_the_broker_is_away(nobody: str) -> None:
    lag = log_of_nobody(nobody).admin().lag("group", [SAMPLES])
    assert [(each.committed, each.end, each.lag_records) for each in lag] == [(None, None, None)] * 2


def test_a_writer_says_that_nothing_was_acknowledged(nobody: str) -> None:
    patient, hasty = (
        log_of_nobody(nobody).writer(WriterSettings(delivery_timeout_s=limit_s)) for limit_s in (600.0, 1.0)
    )
    sample = Sample(
        run="nobody",
        group=0,
        member=0,
        attempt="a",
        producer="p",
        sampling=SamplingParams(),
        seed=0,
        started_unix_ms=0,
        finished_unix_ms=0,
    )
    for writer in (patient, hasty):
        writer.write(SAMPLES, sample)
    with pytest.raises(DeliveryError, match=r"not acknowledged within 0\.2 s; it is unknown"):
        patient.flush(deadline=Deadline.after(0.2))
    with pytest.raises(DeliveryError, match=r"rlweave\.nobody\.samples \[0\]"):
        hasty.flush(deadline=Deadline.after(30.0))
    with pytest.raises(DeliveryError, match="1 records were not acknowledged"):
        patient.close(deadline=Deadline.after(0.0))
    hasty.close(deadline=Deadline.after(1.0))


def test_taking_over_an_id_without_a_broker_ends_by_the_deadline(nobody: str) -> None:
    writer = log_of_nobody(nobody).writer(WriterSettings(transactional_id="nobody.tx"))
    with pytest.raises(DeliveryError, match=r"taking over transactional id nobody\.tx"):
        writer.start(deadline=Deadline.after(0.5))


@pytest.mark.integration
def test_bytes_written_and_read_are_counted_by_topic(kafka_log: KafkaLog) -> None:
    writer = kafka_log.writer(WriterSettings())
    for seq in range(3):
        command = Command(
            run=kafka_log.run, epoch=1, seq=seq, kind="publish", target="all", reason="a test", issued_unix_ms=seq
        )
        writer.write(COMMANDS, command)
    writer.flush(deadline=Deadline.after(20.0))
    reader = kafka_log.reader(ReaderSettings(topics=(COMMANDS,)), hooks=QUIET)
    found: list[Envelope] = []
    deadline = Deadline.after(20.0)
    while len(found) < 3:
        found += reader.poll(10, deadline=Deadline.after(0.5))
        deadline.check("the records")
    assert kafka_log.written_bytes == kafka_log.read_bytes == {"commands": sum(each.num_bytes for each in found)}
    reader.close()
    writer.close(deadline=Deadline.after(5.0))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("topic", "key", "value", "message"),
    [
        (PROMPTS, "max.message.bytes", "1000000", "has max.message.bytes = 1000000, this run needs 33619968"),
        (PROMPTS, "retention.ms", "60000", "has retention.ms = 60000, this run needs -1"),
        (COMMANDS, "cleanup.policy", "delete", "has cleanup.policy = delete, this run needs compact"),
    ],
)
def test_a_topic_with_other_settings_is_refused(
    kafka_log: KafkaLog, services: ServicesInfo, topic: Topic, key: str, value: str, message: str
) -> None:
    name = full_name(kafka_log.run, topic)
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": services.kafka_bootstrap})
    for future in client.incremental_alter_configs([resource]).values():
        future.result()
    refusals: list[str] = []
    deadline = Deadline.after(20.0)
    while not refusals:
        deadline.check("the changed setting to be refused")
        try:
            kafka_log.admin().ensure_topics()
        except TopicMismatch as error:
            refusals.append(error.message)
    assert f"topic {name} {message}" in refusals[0]


@pytest.mark.integration
def test_two_processes_may_create_the_topics_at_once(services: ServicesInfo, run_name: str) -> None:
    logs = [KafkaLog(services.kafka_bootstrap, run=run_name, data_partitions=2) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        created = list(pool.map(lambda log: log.admin().ensure_topics(), logs))
    assert sorted(name for names in created for name in names) == sorted(
        full_name(run_name, topic) for topic in CATALOG
    )
    logs[0].admin().delete_topics()
