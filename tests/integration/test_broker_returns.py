"""The only broker is killed and comes back: members of a group find their places again, and lag is known again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.services.cluster import Broker, Cluster
from ops.services.manager import services_down, services_up
from ops.services.model import ServicesSettings
from tests.unit.ops.little_run import PARTITIONS, RUN, prompt
from topics.catalog import PROMPTS
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import Reader, ReaderHooks, ReaderSettings, WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GROUP = f"rlweave.{RUN}.rollout"
LIMIT_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = ServicesSettings(state_dir=tmp_path / "services")
    services_up(settings)
    (broker,) = Cluster(settings.state_dir).brokers
    try:
        yield broker
    finally:
        broker.kill()
        services_down(settings)


def test_readers_of_a_group_go_on_from_what_it_committed(broker: Broker) -> None:
    log = KafkaLog(broker.address, run=RUN, data_partitions=PARTITIONS)
    log.connect(deadline=Deadline.after(LIMIT_S))
    log.admin().ensure_topics()
    first = reader_of(log)
    write(log, *range(4))
    assert groups_read(first, num=4) == {0, 1, 2, 3}
    first.commit(first.positions())
    assert log.admin().lag(GROUP, [PROMPTS])  # whoever asks while the broker is away must not spoil later answers
    broker.kill()
    while_away = Deadline.after(3.0)
    while not while_away.expired:
        first.poll(10, deadline=Deadline.after(0.2))
    broker.start()
    second = reader_of(log)  # each of both has to ask where to begin
    write(log, *range(4, 12))
    assert groups_read(first, second, num=8) == set(range(4, 12))
    assert [each.lag_records is None for each in log.admin().lag(GROUP, [PROMPTS])] == [False] * PARTITIONS
    first.close()
    second.close()


def reader_of(log: KafkaLog) -> Reader:
    settings = ReaderSettings(topics=(PROMPTS,), group=GROUP, assign="group", session_timeout_s=6.0)
    return log.reader(settings, hooks=ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None))


def write(log: KafkaLog, *groups: int) -> None:
    writer = log.writer(WriterSettings())
    for group in groups:
        writer.write(PROMPTS, prompt(group))
    writer.flush(deadline=Deadline.after(LIMIT_S))
    writer.close(deadline=Deadline.after(LIMIT_S))


def groups_read(*readers: Reader, num: int) -> set[int]:
    """Groups that some readers read between them, until there are so many."""
    deadline, groups = Deadline.after(LIMIT_S), set[int]()
    while len(groups) < num and not deadline.expired:
        for reader in readers:
            for envelope in reader.poll(10, deadline=Deadline.after(0.2)):
                groups.add(envelope.record.group)  # type: ignore[union-attr]
    return groups
