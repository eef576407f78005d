"""Batches of a foreign writer that unpack to more than a reader should hold: passed, told exactly, memory bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # re-exported implicitly

from ops.services.cluster import Cluster
from ops.services.manager import services_down, services_up
from ops.services.model import ServicesSettings
from tests.contract.logs import P, Told, drain, groups_of, sample
from topics.catalog import CATALOG, SAMPLES, full_name
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import ReaderSettings, WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]
MIB = 2**20
LIMIT_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of its own: what it is given here is hard on its heap of 384 MiB."""
    settings = ServicesSettings(state_dir=tmp_path_factory.mktemp("bombs"))
    try:
        services_up(settings)
        yield Cluster(settings.state_dir)
    finally:
        services_down(settings)


@pytest.fixture
def log(broker: Cluster, run_name: str) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap, run=run_name, data_partitions=P)
    log.admin().ensure_topics()
    yield log
    log.admin().delete_topics()


def good(log: KafkaLog, *groups: int) -> None:
    """Samples on partition 0, a batch of their own."""
    writer = log.writer(WriterSettings())
    for group in groups:
        writer.write(SAMPLES, sample(group * P))
    writer.flush(deadline=Deadline.after(LIMIT_S))
    writer.close(deadline=Deadline.after(LIMIT_S))


def foreign(log: KafkaLog, bootstrap: str, *, codec: str, values: list[bytes]) -> str | None:
    """One batch of somebody else's on partition 0; the broker's error, if it refuses."""
    errors: list[str] = []
    config = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "message.max.bytes": 1_000_000_000,
        "batch.size": 1_000_000_000,
        "batch.num.messages": 1_000_000,
        "queue.buffering.max.kbytes": 2_097_151,
        "linger.ms": 60_000,  # until `flush`: one batch, however long it takes to hand it over
        "log_level": 0,
    }
    producer = Producer(config, on_delivery=lambda error, _: errors.append(str(error)) if error is not None else None)
    for value in values:
        producer.produce(full_name(log.run, SAMPLES), value, partition=0)
    assert producer.flush(LIMIT_S) == 0
    return errors[0] if errors else None


def test_a_bomb_is_passed_and_told_and_no_good_record_is_lost(log: KafkaLog, broker: Cluster) -> None:
    """Two bombs side by side, one of a single record, and one at the end of the log."""
    good(log, 0, 1, 2)
    for values in ([bytes(4 * MIB)] * 40, [bytes(150 * MIB)]):
        assert foreign(log, broker.bootstrap, codec="zstd", values=values) is None
    good(log, 3, 4)
    assert foreign(log, broker.bootstrap, codec="zstd", values=[bytes(4 * MIB)] * 33) is None
    told = Told()
    settings = ReaderSettings(topics=(SAMPLES,), assign="group", group=f"{log.run}.g", instance="reader-1")
    reader = log.reader(settings, hooks=told.hooks())
    assert groups_of(drain(reader)) == [0, 4, 8, 12, 16]
    assert [(each.first, each.end) for each in told.unreadable] == [(3, 43), (43, 44), (46, 79)]
    assert [each.offset for each in told.dead_letters] == [3, 43, 46]
    assert (
        "the 40 records at the offsets 3 to 42 are in a batch that cannot be unpacked: " in told.dead_letters[0].error
    )
    reader.commit(reader.positions())
    reader.close()
    assert log.admin().lag(f"{log.run}.g", [SAMPLES])[0].lag_records == 0
    again = Told()
    reader = log.reader(settings, hooks=again.hooks())
    assert (drain(reader), again.unreadable) == ([], [])
    reader.close()


def test_reading_that_begins_inside_a_bomb_tells_of_the_rest(log: KafkaLog, broker: Cluster) -> None:
    good(log, 0)
    assert foreign(log, broker.bootstrap, codec="zstd", values=[bytes(4 * MIB)] * 40) is None
    good(log, 1)
    told = Told()
    settings = ReaderSettings(topics=(SAMPLES,), partitions=(0,), positions={("samples", 0): 30})
    reader = log.reader(settings, hooks=told.hooks())
    assert groups_of(drain(reader)) == [4]
    assert [(each.first, each.end) for each in told.unreadable] == [(30, 41)]
    reader.close()


def test_tools_leave_a_bomb_out_and_say_so(log: KafkaLog, broker: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    good(log, 0)
    assert foreign(log, broker.bootstrap, codec="zstd", values=[bytes(4 * MIB)] * 40) is None
    good(log, 1)
    assert foreign(log, broker.bootstrap, codec="zstd", values=[bytes(4 * MIB)] * 40) is None
    raw, place = RawLog(broker.bootstrap), (full_name(log.run, SAMPLES), 0)
    assert [each.offset for each in raw.read({place: raw.ranges([place])[place]})] == [0, 41]
    said = [message for message in caplog.messages if "cannot be unpacked and are left out" in message]
    assert [message.split(",")[1] for message in said] == [" at the offsets 1 to 40", " at the offsets 42 to 81"]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "none"])
def test_a_batch_of_another_codec_reaches_readers_as_ours(log: KafkaLog, broker: Cluster, codec: str) -> None:
    """The broker packs it anew: so what unpacks to more than 100 MB is refused by the library, and passed."""
    size = 4 if codec == "none" else 30  # x 4 MiB; not packed, such a batch is over the topic's limit
    assert foreign(log, broker.bootstrap, codec=codec, values=[b"not a record"]) is None
    assert foreign(log, broker.bootstrap, codec=codec, values=[bytes(4 * MIB)] * size) is None
    good(log, 7)
    told = Told()
    reader = log.reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,)), hooks=told.hooks())
    assert groups_of(drain(reader)) == [28]
    assert [(each.first, each.end) for each in told.unreadable] == ([] if codec == "none" else [(1, 31)])
    assert told.dead_letters[0].value == b"not a record"
    reader.close()
    assert stored_codecs(log, broker) == {"zstd"}


def stored_codecs(log: KafkaLog, broker: Cluster) -> set[str]:
    """Codecs of the batches of partition 0, from their headers on the broker's disk (Kafka's record batch, v2)."""
    (segment,) = (broker.broker(1).log.parents[1] / "data" / f"{full_name(log.run, SAMPLES)}-0").glob("*.log")
    data, found, at = segment.read_bytes(), set(), 0
    while at + 61 <= len(data):
        attributes = int.from_bytes(data[at + 21 : at + 23], "big")
        found.add(["none", "gzip", "snappy", "lz4", "zstd"][attributes & 7])
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def test_a_bomb_larger_than_the_brokers_heap_is_refused_and_the_broker_goes_on(log: KafkaLog, broker: Cluster) -> None:
    pid = broker.broker(1).pid
    refused = foreign(log, broker.bootstrap, codec="gzip", values=[bytes(400 * MIB)])
    assert refused is not None
    good(log, 0)
    assert broker.broker(1).pid == pid


READ = """
import json, sys
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import ReaderHooks, ReaderSettings

passed = []
hooks = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None, unreadable=passed.append)
log = KafkaLog(sys.argv[1], run=sys.argv[2], data_partitions=4)
reader = log.reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,)), hooks=hooks)
found, deadline = 0, Deadline.after(60)
while found < 2:
    deadline.check("the records")
    found += len(reader.poll(10, deadline=Deadline.after(0.2)))
reader.close()
peak_kib = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak_mib": peak_kib // 1024, "lost": sum(each.num_lost for each in passed)}))
"""


def peak_of_reading(log: KafkaLog, bootstrap: str) -> dict[str, int]:
    """Peak memory of a process that reads two records, and how many it could not."""
    done = subprocess.run(
        [sys.executable, "-c", READ, bootstrap, log.run], capture_output=True, text=True, check=True, cwd=ROOT
    )
    answer: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_memory_of_a_reader_is_bounded(log: KafkaLog, broker: Cluster) -> None:
    good(log, 0, 1)
    without = peak_of_reading(log, broker.bootstrap)
    log.admin().delete_topics()
    deadline = Deadline.after(LIMIT_S)
    while log.admin().topic_ids():
        deadline.check("the topics to go")
    log.admin().ensure_topics()
    good(log, 0)
    for _ in range(3):
        assert foreign(log, broker.bootstrap, codec="zstd", values=[bytes(400 * MIB)]) is None
    good(log, 1)
    bombed = peak_of_reading(log, broker.bootstrap)
    assert (without["lost"], bombed["lost"]) == (0, 3)
    assert bombed["peak_mib"] - without["peak_mib"] < 2 * 100, (without, bombed)


def test_topics_of_an_older_release_are_brought_to_our_codec(broker: Cluster, run_name: str) -> None:
    client, topic = AdminClient({"bootstrap.servers": broker.bootstrap}), full_name(run_name, SAMPLES)
    config = {"max.message.bytes": str(64 * MIB), "retention.ms": "-1"}
    client.create_topics([NewTopic(topic, P, 1, config=config)])[topic].result()
    log = KafkaLog(broker.bootstrap, run=run_name, data_partitions=P)
    log.admin().ensure_topics()
    raw, names = RawLog(broker.bootstrap), [full_name(run_name, each) for each in CATALOG]
    deadline = Deadline.after(LIMIT_S)
    while {each["compression.type"] for each in raw.configs(names).values()} != {"zstd"}:
        deadline.check("the settings")
    log.admin().delete_topics()
