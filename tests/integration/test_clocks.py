"""Hosts whose clocks differ: the broker stamps, so nobody else's clock decides what is kept or taken."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported implicitly

from ops.services.model import ServicesInfo
from schemas.errors import DeliveryError
from topics.catalog import CATALOG, DAY_MS, EVENTS, SAMPLES, full_name
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog, RawRecord

pytestmark = pytest.mark.integration
NEAR_MS = 60_000  # the broker runs here: what its clock and ours may differ by, and a slow machine takes


def record(topic: str, *, off_ms: int) -> RawRecord:
    unix_ms = SystemClock().unix_ms() + off_ms
    return RawRecord(topic=topic, partition=0, offset=0, key=b"k", value=b"v", headers=(), unix_ms=unix_ms)


def is_written(raw: RawLog, topic: str, *, off_ms: int) -> bool:
    """A broker answers that a setting was changed before it goes by it."""
    try:
        return raw.write(topic, [record(topic, off_ms=off_ms)]) == 1
    except DeliveryError:
        return False


def times(raw: RawLog, topic: str) -> list[int]:
    return [each.unix_ms for each in raw.read({(topic, 0): raw.ranges([(topic, 0)])[topic, 0]})]


@pytest.mark.parametrize("off_ms", [DAY_MS, -DAY_MS, 30 * DAY_MS, -30 * DAY_MS], ids=["1d", "-1d", "30d", "-30d"])
def test_a_record_of_a_host_whose_clock_is_off_has_the_brokers_time(
    kafka_log: KafkaLog, services: ServicesInfo, off_ms: int
) -> None:
    raw = RawLog(services.kafka_bootstrap)
    topic = full_name(kafka_log.run, EVENTS)  # kept for seven days
    assert raw.write(topic, [record(topic, off_ms=off_ms)]) == 1
    (found,) = times(raw, topic)
    assert abs(found - SystemClock().unix_ms()) < NEAR_MS
    assert raw.first_at([(topic, 0)], unix_ms=SystemClock().unix_ms() - NEAR_MS) == {(topic, 0): 0}


def test_every_topic_is_stamped_by_the_broker(kafka_log: KafkaLog, services: ServicesInfo) -> None:
    names = [full_name(kafka_log.run, topic) for topic in CATALOG]
    configs = RawLog(services.kafka_bootstrap).configs(names)
    assert {configs[name]["message.timestamp.type"] for name in names} == {"LogAppendTime"}
    assert configs[full_name(kafka_log.run, EVENTS)]["retention.ms"] == str(7 * DAY_MS)


def test_topics_of_an_older_release_are_brought_to_it_and_keep_their_records(
    services: ServicesInfo, run_name: str
) -> None:
    """A topic that is stamped by its writers refuses what is more than an hour ahead (Kafka 4)."""
    topic = full_name(run_name, SAMPLES)
    client = AdminClient({"bootstrap.servers": services.kafka_bootstrap})
    wire = {"max.message.bytes": str(64 * 2**20), "retention.ms": "-1"}
    client.create_topics([NewTopic(topic, 4, 1, config=wire)])[topic].result()
    raw = RawLog(services.kafka_bootstrap)
    deadline = Deadline.after(20)
    while topic not in raw.partition_counts():
        deadline.check("the topic")
    assert raw.write(topic, [record(topic, off_ms=-DAY_MS)]) == 1
    with pytest.raises(DeliveryError, match=r"[Tt]imestamp"):
        raw.write(topic, [record(topic, off_ms=DAY_MS)])
    log = KafkaLog(services.kafka_bootstrap, run=run_name, data_partitions=4)
    log.admin().ensure_topics()
    deadline = Deadline.after(20)
    while not is_written(raw, topic, off_ms=DAY_MS):
        deadline.check("the changed setting to be that of the log")
    before, after = times(raw, topic)
    assert abs(before + DAY_MS - SystemClock().unix_ms()) < NEAR_MS
    assert abs(after - SystemClock().unix_ms()) < NEAR_MS
    log.admin().delete_topics()


@pytest.mark.parametrize("off_ms", [DAY_MS, -DAY_MS], ids=["1d", "-1d"])
def test_a_copy_keeps_the_times_of_its_records(kafka_log: KafkaLog, services: ServicesInfo, off_ms: int) -> None:
    raw = RawLog(services.kafka_bootstrap)
    target = f"{full_name(kafka_log.run, SAMPLES)}-copy"
    raw.create_like(target, source=full_name(kafka_log.run, SAMPLES))
    one = record(target, off_ms=off_ms)
    assert raw.write(target, [one]) == 1
    assert times(raw, target) == [one.unix_ms]
    raw.delete([target])
