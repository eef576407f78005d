"""Three brokers: what a run asks of its topics, and what a broker that goes costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import pytest
from click.testing import CliRunner

from ops.cli.services import services as services_command
from ops.services.cluster import Cluster
from ops.services.manager import services_status, services_up
from ops.services.model import ServicesError, ServicesSettings
from pipeline.events import Events
from pipeline.metrics import Metrics
from schemas.errors import LogError, TopicMismatch
from schemas.records import Command
from topics.catalog import COMMANDS, EVENTS, LEDGER, Topic, full_name
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import Reader, ReaderHooks, ReaderSettings, RecreatedTopic, WriterSettings

HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
LIMIT_S = 60.0
Assign: TypeAlias = Literal["self", "group"]


def command(number: int) -> Command:
    return Command(
        run="any",
        target="rollout",
        kind=f"k{number}",
        epoch=1,
        seq=number,
        reason="a test",
        issued_unix_ms=0,
    )


@dataclass
class Traffic:
    """A transactional writer and a reader of one run, and what went through."""

    log: KafkaLog
    written: int = 0
    read: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = self.log.writer(WriterSettings(transactional_id=f"rlweave.{self.log.run}.t", linger_ms=0.0))
        self.reader: Reader = self.log.reader(ReaderSettings(topics=(COMMANDS,)), hooks=HOOKS)

    def write(self, num: int) -> None:
        for _ in range(num):
            with self.writer.transaction(deadline=Deadline.after(LIMIT_S)):
                self.writer.write(COMMANDS, command(self.written))
            self.written += 1

    def read_all(self) -> None:
        deadline = Deadline.after(LIMIT_S)
        while len(self.read) < self.written:
            deadline.check(f"{self.written} records; {len(self.read)} came")
            for envelope in self.reader.poll(100, deadline=Deadline.after(0.2)):
                assert isinstance(envelope.record, Command)
                self.read.append(envelope.record.kind)

    def close(self) -> None:
        self.reader.close()
        self.writer.close(deadline=Deadline.after(10))


@pytest.fixture
def log(cluster: Cluster, run_name: str) -> Iterator[KafkaLog]:
    log = KafkaLog(cluster.bootstrap, run=run_name, data_partitions=2, replication_factor=3)
    names = set(log.admin().ensure_topics())
    for address in cluster.bootstrap.split(","):  # one hears of new topics later than another
        wait_until(partial(is_listed, names, RawLog(address)), doing=f"{address} to list the topics")
    yield log
    log.admin().delete_topics()


@pytest.fixture
def traffic(log: KafkaLog) -> Iterator[Traffic]:
    traffic = Traffic(log)
    yield traffic
    traffic.close()


def test_topics_have_three_copies_of_which_two_must_be_in_sync(cluster: Cluster, log: KafkaLog) -> None:
    raw = RawLog(cluster.bootstrap)
    name = full_name(log.run, LEDGER)
    assert raw.configs([name])[name]["min.insync.replicas"] == "2"
    assert raw.copies()[name] == 3
    assert log.admin().ensure_topics() == []
    assert raw.create_like(f"rlweave.{log.run}.commands-copy", source=full_name(log.run, COMMANDS))
    deadline = Deadline.after(LIMIT_S)
    while (copies := raw.copies().get(f"rlweave.{log.run}.commands-copy")) is None:
        deadline.check("every broker to know the new topic")
    assert copies == 3
    raw.delete([f"rlweave.{log.run}.commands-copy"])


def test_topics_with_too_few_copies_are_refused(cluster: Cluster, run_name: str) -> None:
    single = KafkaLog(cluster.bootstrap, run=run_name, data_partitions=2, replication_factor=1)
    single.admin().ensure_topics()
    wanted = KafkaLog(cluster.bootstrap, run=run_name, data_partitions=2, replication_factor=3)
    with pytest.raises(TopicMismatch, match=r"replication\.factor = 1, this run needs 3"):
        wanted.admin().ensure_topics()
    single.admin().delete_topics()


def test_a_topic_deleted_a_moment_ago_is_made_anew_though_some_broker_still_lists_it(
    cluster: Cluster, log: KafkaLog
) -> None:
    name = full_name(log.run, COMMANDS)
    raw = RawLog(cluster.bootstrap)
    ids = {log.admin().topic_ids()[COMMANDS.name]}
    for _ in range(4):
        wait_until(lambda: is_deleted(raw, name), doing="the topic to be deleted")
        wait_until(lambda: is_made(log) and has_another_id(log, ids), doing="the topic to be made anew")
    wait_until(lambda: raw.copies().get(name) == 3, doing="its three copies")
    wait_until(lambda: is_made(log), doing="every broker to know it")
    assert log.admin().ensure_topics() == []


def is_listed(names: set[str], raw: RawLog) -> bool:
    return names <= raw.partition_counts().keys()


def has_another_id(log: KafkaLog, ids: set[str]) -> bool:
    """Takes it in; a broker that has not heard of the change yet says none, or the old one."""
    found = log.admin().topic_ids().get(COMMANDS.name)
    if found is None or found in ids:
        return False
    ids.add(found)
    return True


def wait_until(done: Callable[[], bool], *, doing: str) -> None:
    deadline = Deadline.after(LIMIT_S)
    while not done():
        deadline.check(doing)
        deadline.clock.wait(0.05)


def is_deleted(raw: RawLog, name: str) -> bool:
    try:
        raw.delete([name])
    except LogError:  # the broker that was asked has not heard of it yet
        return False
    return True


def is_made(log: KafkaLog) -> bool:
    try:
        log.admin().ensure_topics()
    except LogError:  # a broker has not heard of the deletion, and another one has
        return False
    return True


def test_brokers_that_are_killed_or_restarted_cost_time_and_no_record(cluster: Cluster, traffic: Traffic) -> None:
    before = [broker.pid for broker in cluster.brokers]
    traffic.write(10)
    cluster.broker(2).kill()
    assert cluster.broker(2).pid is None
    traffic.write(10)
    traffic.read_all()
    cluster.broker(2).start()
    cluster.rolling_restart(nodes=[1])
    traffic.write(5)
    traffic.read_all()
    assert traffic.read == [f"k{number}" for number in range(25)]
    after = [broker.pid for broker in cluster.brokers]
    assert (after[0] != before[0], after[1] not in (None, before[1]), after[2] == before[2]) == (True, True, True)


def test_topics_made_anew_after_their_leaders_changed_are_read_and_written(cluster: Cluster, log: KafkaLog) -> None:
    """Their leader epochs begin at 0 again, and the library believes no epoch below one that it has seen. A writer that
    knew the old topic asks the wrong broker; a stage without events would be taken for dead."""
    told: dict[Assign, list[RecreatedTopic]] = {"self": [], "group": []}
    readers = {assign: reader_of(log, assign, told=told[assign]) for assign in told}
    events = events_of(log)
    traffic = Traffic(log)
    cluster.rolling_restart()
    traffic.write(5)
    for assign, reader in readers.items():
        assert read_kinds(reader, num=5) == [f"k{number}" for number in range(5)], assign
    events.heartbeat()
    traffic.close()
    traffic = Traffic(made_anew(cluster, log, topic=COMMANDS))
    traffic.write(3)
    for assign, reader in readers.items():
        assert read_kinds(reader, num=3) == ["k0", "k1", "k2"], assign
        assert [each.resumed_at for each in told[assign]] == [0], assign
        reader.close()
    traffic.close()
    newer, deadline = made_anew(cluster, log, topic=EVENTS), Deadline.after(LIMIT_S)
    later = newer.reader(ReaderSettings(topics=(EVENTS,)), hooks=HOOKS)
    while not later.poll(1, deadline=Deadline.after(0.5)):
        deadline.check("an event in the new topic")
        events.heartbeat()
    events.close(deadline=Deadline.after(10))
    later.close()


def reader_of(log: KafkaLog, assign: Assign, *, told: list[RecreatedTopic]) -> Reader:
    group = f"rlweave.{log.run}.reward.any"
    settings = ReaderSettings(topics=(COMMANDS,), assign=assign, group=group, topic_check_s=0.5)
    return log.reader(settings, hooks=ReaderHooks(dead_letter=print, lost=print, recreated=told.append))


def events_of(log: KafkaLog) -> Events:
    return Events(
        partial(log.writer, WriterSettings(linger_ms=0.0, delivery_timeout_s=5.0)),
        run=log.run,
        stage="reward",
        instance="reward-1",
        clock=SystemClock(),
        metrics=Metrics(run=log.run, stage="reward", instance="reward-1"),
    )


def made_anew(cluster: Cluster, log: KafkaLog, *, topic: Topic) -> KafkaLog:
    """Delete a topic and make it again; returns the run's log with clients that never knew the old one."""
    RawLog(cluster.bootstrap).delete([full_name(log.run, topic)])
    deadline = Deadline.after(LIMIT_S)
    while not is_made(log):
        deadline.check("the topic to be made anew")
        deadline.clock.wait(0.05)
    return KafkaLog(cluster.bootstrap, run=log.run, data_partitions=2, replication_factor=3)


def read_kinds(reader: Reader, *, num: int) -> list[str]:
    deadline, kinds = Deadline.after(LIMIT_S), list[str]()
    while len(kinds) < num:
        deadline.check(f"{num} records; {kinds} came")
        kinds += [
            each.record.kind
            for each in reader.poll(100, deadline=Deadline.after(0.2))
            if isinstance(each.record, Command)
        ]
    return kinds


def test_status_shows_each_broker_and_another_number_is_refused(cluster: Cluster) -> None:
    state_dir = cluster.broker(1).log.parents[2]
    shown = CliRunner().invoke(services_command, ["status", "--state-dir", str(state_dir), "--json"])
    info = json.loads(shown.stdout)
    assert info["kafka"]["address"] == cluster.bootstrap
    assert [each["name"] for each in info["brokers"]] == ["kafka-1", "kafka-2", "kafka-3"]
    assert [each["pid"] for each in info["brokers"]] == [broker.pid for broker in cluster.brokers]
    assert services_status(ServicesSettings(state_dir=state_dir)).kafka.running
    with pytest.raises(ServicesError, match="made with 3 broker"):
        services_up(ServicesSettings(state_dir=state_dir, brokers=1))
    with pytest.raises(ServicesError, match="there is no broker 4"):
        cluster.broker(4)
