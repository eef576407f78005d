"""Four rollout producers and a scheduler on a real broker: versions go round in waves, and all end on the newest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.stage import SchedulerStage
from ops.services.model import ServicesInfo
from pipeline.engines.backends import Backend
from pipeline.engines.base import StateTensor
from pipeline.engines.scripted import ScriptedEngine
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.weights.state import decode_arrays
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.records import Command, Version
from tests.conftest import DATA_PARTITIONS
from tests.unit.producers.conftest import world_with_peer
from tests.unit.producers.world import World, records_of
from topics.catalog import COMMANDS
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog

pytestmark = pytest.mark.integration
NUM_ENGINES = 4
MOST_AT_ONCE = 2  # half of them goes on generating
LOAD_S, SLOW_LOAD_S = 0.15, 1.0
RUN = {"partitions": DATA_PARTITIONS, "groups_per_step": 4, "group_size": 2, "max_staleness": 50, "max_steps": 100}


@dataclass
class Loads:
    """Who stands still at the same time, over all engines; the first version of an engine does not count."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    load_s: float = LOAD_S
    num_now: int = 0
    at_once: list[int] = field(default_factory=list)  # engines that stood still, at the beginning of each load

    def begin(self) -> None:
        with self.lock:
            self.num_now += 1
            self.at_once.append(self.num_now)

    def end(self) -> None:
        with self.lock:
            self.num_now -= 1


class SlowToLoad(ScriptedEngine):
    """Needs `Loads.load_s` for a load, as engines with real weights do."""

    def __init__(self, loads: Loads) -> None:
        super().__init__()
        self.loads = loads
        self.served: list[Version] = []

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        if self.version is None:
            super().load(version, state)
        else:
            self.loads.begin()
            time.sleep(self.loads.load_s)
            super().load(version, state)
            self.loads.end()
        self.served.append(version)


@dataclass
class Fleet:
    """The rollout producers, each in a thread of its own, beside a scheduler that the test turns."""

    world: World
    bootstrap: str
    loads: Loads = field(default_factory=Loads)
    engines: list[SlowToLoad] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(NUM_ENGINES))
    threads: list[Future[None]] = field(default_factory=list)
    schedulers: list[SchedulerStage] = field(default_factory=list)

    def start(self) -> None:
        for slot in range(NUM_ENGINES):
            self.engines.append(SlowToLoad(self.loads))
            self.threads.append(self.pool.submit(self.run, slot))

    def run(self, slot: int) -> None:
        log = KafkaLog(self.bootstrap, run=self.world.log.run, data_partitions=DATA_PARTITIONS)
        context = self.world.context("rollout", log=log, instance=f"rollout-{slot}")
        setup = RolloutSetup(
            rollout=RolloutSettings(engine="scripted", scheduler_silence_s=120.0),
            model=ModelSettings(path=Path("none")),
            weights=WeightsSettings(),
            slot=slot,
            backend=Backend(engine=self.engines[slot], decode=decode_arrays),
        )
        stage = RolloutStage(context, setup)
        stage.start(deadline=Deadline.after(60))
        while not self.ended.is_set():
            stage.turn()
            context.events.heartbeat()
        stage.stop(deadline=Deadline.after(20))
        context.events.close(deadline=Deadline.after(5))

    def scheduler(self) -> SchedulerStage:
        """One that decides by itself every two seconds only: what comes sooner was called for."""
        settings = SchedulerSettings(heartbeat_s=2.0, interval_s=2.0, keep_generating_share=0.5, wave_limit_s=120.0)
        stage = SchedulerStage(self.world.context("scheduler"), settings=settings)
        stage.start(deadline=Deadline.after(20))
        self.schedulers.append(stage)
        return stage

    def all_serve(self, step: int) -> bool:
        for thread in self.threads:
            if thread.done():
                thread.result()
        return all(engine.version == Version(lineage=1, step=step) for engine in self.engines)

    def publishes(self) -> list[Command]:
        found = [record for record in records_of(self.world.log, COMMANDS) if isinstance(record, Command)]
        return [command for command in found if command.kind == "publish"]

    def close(self) -> None:
        self.ended.set()
        self.pool.shutdown(wait=True)
        for scheduler in self.schedulers:
            scheduler.stop(deadline=Deadline.after(10))


@pytest.fixture
def fleet(kafka_log: KafkaLog, services: ServicesInfo, tmp_path: Path) -> Iterator[Fleet]:
    world, peer = world_with_peer(kafka_log, folder=tmp_path, clock=SystemClock(), fields=RUN)
    made = Fleet(world, services.kafka_bootstrap)
    yield made
    made.close()
    peer.stop()


def turn_until(stage: SchedulerStage, done: Callable[[], bool], *, what: str, limit_s: float = 60.0) -> float:
    """Turn the scheduler until the condition holds; gives the seconds that took."""
    began_s = time.monotonic()
    while not done():
        assert time.monotonic() < began_s + limit_s, f"waited {limit_s:g} s for {what}"
        stage.turn()
    return time.monotonic() - began_s


def is_settled(scheduler: SchedulerStage, step: int) -> bool:
    """Whether the scheduler has heard from all engines that they serve this version."""
    snapshot = scheduler._signals.snapshot(now_s=time.monotonic(), lag={}, standing=scheduler._commands.standing)
    return list(snapshot.served().values()) == [Version(lineage=1, step=step)] * NUM_ENGINES


def is_commanded(scheduler: SchedulerStage, step: int) -> bool:
    return scheduler._commands.standing.published == Version(lineage=1, step=step)


@pytest.mark.slow
def test_never_more_than_the_allowed_share_stands_still_and_all_end_on_the_newest(fleet: Fleet) -> None:
    world = fleet.world
    world.lineage(1)
    world.publish(1, 0)
    scheduler = fleet.scheduler()
    fleet.start()
    turn_until(scheduler, lambda: is_settled(scheduler, 0), what="the first version everywhere")
    assert fleet.loads.at_once == []

    took_s = []
    for step in range(1, 6):
        world.publish(1, step)
        took_s.append(turn_until(scheduler, partial(is_settled, scheduler, step), what=f"version 1.{step}"))
    assert max(fleet.loads.at_once) <= MOST_AT_ONCE
    assert len(fleet.loads.at_once) == 5 * NUM_ENGINES, "each version was loaded once by each"
    waves = [command.waves for command in fleet.publishes() if command.version == Version(lineage=1, step=3)]
    assert [len(names) for names in waves[0]] == [2, 2]
    print(f"a version in two waves of {LOAD_S:g} s each took {sorted(took_s)[2]:.2f} s (median of 5)")

    fleet.loads.load_s = SLOW_LOAD_S
    for step in range(6, 12):  # faster than they can be loaded; a new scheduler comes in between
        world.publish(1, step)
        if step == 8:
            scheduler = fleet.scheduler()
            fleet.schedulers.pop(0).stop(deadline=Deadline.after(10))
        turn_until(scheduler, partial(is_commanded, scheduler, step), what=f"the command for 1.{step}")
    turn_until(scheduler, lambda: fleet.all_serve(11), what="the newest version everywhere")
    assert max(fleet.loads.at_once) <= MOST_AT_ONCE
    for engine in fleet.engines:
        assert engine.served == sorted(engine.served), "no engine went back"
    assert len(fleet.loads.at_once) < 11 * NUM_ENGINES, "versions that came too fast were left out"
