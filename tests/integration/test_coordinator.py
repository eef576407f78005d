"""A broker that restarts under a work queue: commits wait for their coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.services.cluster import Cluster
from ops.services.manager import services_down, services_up
from ops.services.model import ServicesSettings
from tests.contract.logs import P, sample, take_until
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import Envelope, ReaderHooks, ReaderSettings, WriterSettings
from topics.queue import WorkQueue

pytestmark = [pytest.mark.integration, pytest.mark.slow]
LIMIT_S = 60.0


@pytest.fixture
def lone_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of the test's own."""
    settings = ServicesSettings(state_dir=tmp_path_factory.mktemp("lone"))
    try:
        services_up(settings)
        yield Cluster(settings.state_dir)
    finally:
        services_down(settings)


def test_a_commit_during_a_restart_is_put_off_and_goes_through(lone_broker: Cluster, run_name: str) -> None:
    log = KafkaLog(lone_broker.bootstrap, run=run_name, data_partitions=P)
    log.admin().ensure_topics()
    writer = log.writer(WriterSettings())
    for group in range(5):
        writer.write(SAMPLES, sample(group * P))
    writer.flush(deadline=Deadline.after(LIMIT_S))
    writer.close(deadline=Deadline.after(LIMIT_S))
    told: list[str] = []
    hooks = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None, commit_delayed=told.append)
    settings = ReaderSettings(topics=(SAMPLES,), assign="group", group=f"{run_name}.g", session_timeout_s=6.0)
    queue = WorkQueue.open(log, settings, hooks=hooks, max_in_flight=9)
    taken: list[Envelope] = []
    take_until(queue, taken, num_records=5)
    lone_broker.broker(1).kill()
    for envelope in taken:
        queue.done(envelope)
    queue.commit()
    assert queue.take(0, deadline=Deadline.after(1.0)) == []
    assert not queue.is_settled
    lone_broker.broker(1).start()

    def committed() -> int | None:
        return log.admin().lag(f"{run_name}.g", [SAMPLES])[0].committed

    deadline = Deadline.after(LIMIT_S)
    while committed() != 5:
        deadline.check("the commit")
        for envelope in queue.take(9, deadline=Deadline.after(0.2)):  # again, when the session had ended meanwhile
            queue.done(envelope)
        queue.commit()
    assert len(told) <= 1
    queue.close()
