"""A broker whose answers get lost, and one that is away: writers, the join and the scheduler behind a real proxy."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from consumers.scheduler.lag_watch import LagWatch
from consumers.scheduler.policy import decide
from consumers.scheduler.settings import SchedulerSettings
from ops.services.model import ServicesInfo
from schemas.errors import DeliveryError
from schemas.records import Record, Sample
from tests.broker_proxy import BrokerProxy
from tests.integration.learner_world import TOPIC_OF
from tests.unit.consumers.learner.material import G, assembler, record_counts, train_all, whole
from tests.unit.consumers.scheduler.test_policy import GROUP, NOW_S, reward, snapshot
from topics.catalog import PROMPTS, REWARDS, SAMPLES
from topics.clock import Deadline, ManualClock
from topics.kafka import KafkaLog
from topics.log import Envelope, ReaderHooks, ReaderSettings, Writer, WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]
HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
NUM_GROUPS = 125
TWICE = 50


@pytest.fixture
def proxy(services: ServicesInfo) -> Iterator[BrokerProxy]:
    made = BrokerProxy(services.kafka_bootstrap)
    yield made
    made.close()


@pytest.fixture
def behind(kafka_log: KafkaLog, proxy: BrokerProxy) -> KafkaLog:
    """The run's log, reached over the proxy only."""
    return KafkaLog(proxy.bootstrap, run=kafka_log.run, data_partitions=kafka_log.data_partitions)


def write(writer: Writer, records: list[Record]) -> None:
    for record in records:
        writer.write(TOPIC_OF[type(record)], record)


def test_what_is_written_while_answers_get_lost_is_there_once_and_what_is_sent_again_is_trained_once(
    kafka_log: KafkaLog, behind: KafkaLog, proxy: BrokerProxy
) -> None:
    """Case 13: 1,000 samples over a connection that loses answers; then 50 of them again, by a writer that was told a
    time-out for what had been written."""
    draw = random.Random(13)
    groups = [[replace(record, run=kafka_log.run) for record in whole(number)] for number in range(NUM_GROUPS)]
    writer = behind.writer(WriterSettings(linger_ms=1.0))
    proxy.swallow = lambda: proxy.num_swallowed < 25 and draw.random() < 0.5
    for group in groups:
        write(writer, group)
        if draw.random() < 0.3:
            writer.flush(deadline=Deadline.after(30))
    writer.flush(deadline=Deadline.after(60))
    writer.close(deadline=Deadline.after(10))
    assert proxy.num_swallowed >= 10
    once = samples_of(read_all(kafka_log))
    assert len(once) == len(set(once)) == NUM_GROUPS * G == 1000, "an idempotent writer wrote a sample twice"

    again = [record for group in groups for record in group if isinstance(record, Sample)][: 20 * TWICE : 20]
    proxy.swallow = lambda: True
    unsure = behind.writer(WriterSettings(linger_ms=1.0, delivery_timeout_s=600.0))
    write(unsure, list(again[:25]))
    deadline = Deadline.after(60)
    while len(samples_of(read_all(kafka_log))) < 1000 + 25:
        deadline.check("what will time out to be written")
    with pytest.raises(DeliveryError, match="it is unknown whether they were written"):
        unsure.flush(deadline=Deadline.after(0.5))
    proxy.swallow = lambda: False
    sure = behind.writer(WriterSettings(linger_ms=1.0))
    write(sure, list(again[25:]))
    sure.close(deadline=Deadline.after(30))
    unsure.close(deadline=Deadline.after(60))  # it asks again what became of them, between ever longer waits

    envelopes = read_all(kafka_log)
    assert len(samples_of(envelopes)) == 1000 + TWICE, "those that timed out had been written"
    target = assembler(eta=1000)
    target.add_all(envelopes)
    ids, _ = train_all(target, 0, num_groups=10)
    assert len(ids) == len(set(ids)) == 1000
    assert Counter(record_counts(target)) == Counter({("duplicates", "samples"): TWICE})


def read_all(log: KafkaLog) -> list[Envelope]:
    reader = log.reader(ReaderSettings(topics=(PROMPTS, SAMPLES, REWARDS)), hooks=HOOKS)
    ends, found = reader.end_positions(), []
    deadline = Deadline.after(30)
    while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
        deadline.check("the ends of the topics")
        found += reader.poll(5000, deadline=Deadline.after(0.2))
    reader.close()
    return found


def samples_of(envelopes: list[Envelope]) -> list[tuple[int, int]]:
    return [(each.record.group, each.record.member) for each in envelopes if isinstance(each.record, Sample)]


def test_while_brokers_are_away_lag_is_unknown_and_nothing_is_commanded(
    kafka_log: KafkaLog, behind: KafkaLog, proxy: BrokerProxy
) -> None:
    """Case 47 (b): an answer that grew too old is no answer, and neither is an error."""
    writer = kafka_log.writer(WriterSettings())
    for number in range(40):
        write(writer, [replace(whole(number)[1], run=kafka_log.run)])
    writer.close(deadline=Deadline.after(10))
    reader = kafka_log.reader(ReaderSettings(topics=(SAMPLES,), group=GROUP), hooks=HOOKS)
    reader.commit({("samples", partition): 5 for partition in range(4)})
    reader.close()

    clock = ManualClock()
    watch = LagWatch(behind.admin(), clock=clock, interval_s=5.0, max_age_s=30.0)
    settings = SchedulerSettings(heartbeat_s=1.0, pause_lag_records=10)
    wanted = [(GROUP, SAMPLES)]

    def commands(rate: float | None) -> list[float | None]:
        seen = replace(snapshot(reward(), rate=rate), lag=watch.latest(), now_s=NOW_S)
        return [draft.rate for draft in decide(seen, settings) if draft.kind == "rate"]

    watch.measure(wanted)
    assert watch.latest() == {(GROUP, "samples"): 20}
    assert commands(None) == [0.0], "twenty behind, ten are allowed"
    proxy.cut()
    clock.advance(60.0)
    assert watch.latest() == {(GROUP, "samples"): None}
    watch.measure(wanted)
    assert watch.latest() == {(GROUP, "samples"): None}
    assert (commands(None), commands(0.0)) == ([], []), "what stands is left as it is"
    proxy.mend()
    deadline = Deadline.after(60)
    while watch.latest() != {(GROUP, "samples"): 20}:
        deadline.check("the lag to be known again")
        watch.measure(wanted)
    assert commands(None) == [0.0]
