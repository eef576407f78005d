"""Hosts whose clocks differ: what the broker makes of the times they give."""

from __future__ import annotations

import pytest

from ops.services.model import ServicesInfo
from topics.catalog import CATALOG, DAY_MS, EVENTS, SAMPLES, full_name
from topics.clock import SystemClock
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog, RawRecord

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("off_ms", [3 * 3_600_000, 30 * DAY_MS, -30 * DAY_MS], ids=["3h", "30d", "-30d"])
def test_a_host_whose_clock_is_off_can_write(kafka_log: KafkaLog, services: ServicesInfo, off_ms: int) -> None:
    """A broker refuses records from more than an hour ahead unless the topic says otherwise (Kafka 4)."""
    raw = RawLog(services.kafka_bootstrap)
    topic = full_name(kafka_log.run, SAMPLES)
    now_ms = SystemClock().unix_ms()
    record = RawRecord(topic=topic, partition=0, offset=0, key=b"k", value=b"v", headers=(), unix_ms=now_ms + off_ms)
    assert raw.write(topic, [record]) == 1
    (found,) = raw.read({(topic, 0): raw.ranges([(topic, 0)])[topic, 0]})
    assert found.unix_ms == now_ms + off_ms


def test_every_topic_takes_times_from_any_clock(kafka_log: KafkaLog, services: ServicesInfo) -> None:
    names = [full_name(kafka_log.run, topic) for topic in CATALOG]
    configs = RawLog(services.kafka_bootstrap).configs(names)
    assert {configs[name]["message.timestamp.after.max.ms"] for name in names} == {str(2**63 - 1)}
    assert configs[full_name(kafka_log.run, EVENTS)]["retention.ms"] == str(7 * DAY_MS)
