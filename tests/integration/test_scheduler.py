"""The scheduler on a real broker: fencing, epochs, how soon a staged version is commanded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.stage import SchedulerStage
from ops.services.model import ServicesInfo
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from schemas.errors import Fenced
from schemas.records import Command, StageEvent
from tests.contract.logs import KafkaBackend
from tests.unit.consumers.rewards.helpers import read_all
from tests.unit.consumers.scheduler.rig import engines_heard, manifest, step_records
from topics.catalog import COMMANDS, EVENTS, LEDGER, WEIGHTS
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import Writer, WriterSettings

pytestmark = pytest.mark.integration


@dataclass
class Rig:
    """Schedulers of one run."""

    log: KafkaLog
    learner: Writer
    stages: list[SchedulerStage] = field(default_factory=list)

    def scheduler(self, *, interval_s: float = 0.1, heartbeat_s: float = 0.2) -> SchedulerStage:
        context = make_context(self.log, run=RunSettings(name=self.log.run, partitions=4), stage="scheduler")
        stage = SchedulerStage(context, settings=SchedulerSettings(heartbeat_s=heartbeat_s, interval_s=interval_s))
        stage.start(deadline=Deadline.after(20))
        self.stages.append(stage)
        return stage

    def stage_version(self, step: int) -> None:
        """As the learner does: in a transaction."""
        with self.learner.transaction(deadline=Deadline.after(60)):
            for partition, record in step_records(1, step, partitions=self.log.data_partitions, run=self.log.run):
                self.learner.write(LEDGER, record, partition=partition)
            self.learner.write(WEIGHTS, replace(manifest(1, step), run=self.log.run))

    def commands(self, kind: str) -> list[Command]:
        found = [record for record in read_all(self.log, COMMANDS) if isinstance(record, Command)]
        return [command for command in found if command.kind == kind]


@pytest.fixture
def rig(kafka_log: KafkaLog) -> Iterator[Rig]:
    learner = kafka_log.writer(WriterSettings(transactional_id=f"rlweave.{kafka_log.run}.learner", linger_ms=0.0))
    rig = Rig(log=kafka_log, learner=learner)
    rig.learner.start(deadline=Deadline.after(20))
    yield rig
    for stage in rig.stages:
        stage.stop(deadline=Deadline.after(10))
    learner.close(deadline=Deadline.after(10))


def turn_until(stage: SchedulerStage, done: Callable[[], bool], *, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "the condition did not come true"
        stage.turn()


def test_a_successor_fences_its_predecessor_and_goes_on_with_what_stands(rig: Rig) -> None:
    first = rig.scheduler()
    rig.stage_version(1)
    turn_until(first, lambda: len(rig.commands("publish")) == 1)
    second = rig.scheduler()
    turn_until(second, lambda: any(command.epoch == 2 for command in rig.commands("heartbeat")))
    rig.stage_version(2)
    with pytest.raises(Fenced):
        turn_until(first, lambda: False)
    rig.stages.remove(first)
    turn_until(second, lambda: rig.commands("publish")[-1].version == manifest(1, 2).version)
    publishes = [(str(command.version), command.epoch) for command in rig.commands("publish")]
    assert publishes[-1] == ("1.2", 2)
    assert ("1.1", 2) not in publishes, "what stands was commanded again"


def test_a_staged_version_is_commanded_soon(rig: Rig) -> None:
    """Aim: 50 ms. What is asserted is that it does not wait until a decision is due."""
    scheduler = rig.scheduler(interval_s=600.0, heartbeat_s=600.0)
    scheduler.turn()
    delays_s = []
    for step in range(1, 11):
        rig.stage_version(step)
        began_s = time.monotonic()
        while scheduler._commands.standing.published != manifest(1, step).version:
            scheduler.turn()
            assert time.monotonic() < began_s + 60
        delays_s.append(time.monotonic() - began_s)
    print(f"staged to commanded, median {sorted(delays_s)[5] * 1000:.1f} ms")
    assert str(rig.commands("publish")[-1].version) == "1.10"


def test_events_that_retention_took_are_counted_and_reading_goes_on(rig: Rig, services: ServicesInfo) -> None:
    """Case 8: the scheduler stood still until part of what it had not read was gone."""
    scheduler = rig.scheduler()
    scheduler.turn()
    assert scheduler._reader is not None
    scheduler._reader.pause([("events", 0)])  # or the client would read ahead
    wanted = scheduler._reader.positions()["events", 0]
    engine = make_context(rig.log, run=RunSettings(name=rig.log.run, partitions=4), stage="rollout", instance="a")
    for _ in range(30):
        engine.events.heartbeat()
    engine.events.close(deadline=Deadline.after(10))
    end = rig.log.admin().describe()["events"][0][1]
    KafkaBackend(rig.log, bootstrap=services.kafka_bootstrap).delete_before({("events", 0): end - 5})
    scheduler._reader.resume([("events", 0)])
    turn_until(scheduler, lambda: engines_heard(scheduler) == ["a"])
    found = [event for event in read_all(rig.log, EVENTS) if isinstance(event, StageEvent)]
    (lost,) = (event for event in found if event.name == "offsets_lost")
    assert (lost.gauges["num_lost"], lost.gauges["resumed_at"]) == (end - 5 - wanted, end - 5)
    assert lost.details == {"topic": "events", "partition": "0"}
