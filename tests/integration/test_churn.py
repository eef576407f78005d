"""Rollout producers that come and go all the time, on a real broker: partitions move, and work moves along."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from schemas.records import Sample
from tests.conftest import DATA_PARTITIONS
from tests.unit.producers.conftest import Rollouts, world_with_peer
from tests.unit.producers.world import records_of
from topics.catalog import PROMPTS, SAMPLES, rollout_group
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog

pytestmark = pytest.mark.integration
NUM_GROUPS, GROUP_SIZE = 500, 2
NUM_AT_A_TIME = 3
NUM_LEAVING = 6
RUN = {
    "partitions": DATA_PARTITIONS,
    "groups_per_step": 4,
    "group_size": GROUP_SIZE,
    "max_staleness": 2,
    "max_steps": 100,
}
LIMIT_S = 120.0


@pytest.fixture
def rollouts(kafka_log: KafkaLog, tmp_path: Path) -> Iterator[Rollouts]:
    world, peer = world_with_peer(kafka_log, folder=tmp_path, clock=SystemClock(), fields=RUN)
    made = Rollouts(world)
    yield made
    made.stages.clear()  # each was stopped by the thread it lived on
    peer.stop()


class Worker:
    """A producer on a thread of its own, which leaves once it is told to and has let go of its work."""

    def __init__(self, rollouts: Rollouts, *, slot: int, hand_over_s: float) -> None:
        engine = ScriptedEngine(max_concurrent_sequences=32)
        self._stage = rollouts.make(engine, slot=slot, hand_over_s=hand_over_s)
        self.retire = rollouts.context_of(self._stage).retire
        self.end = threading.Event()
        self.thread = threading.Thread(target=_live, args=(self._stage, self.end))
        self.thread.start()

    @property
    def num_partitions(self) -> int:
        """What it has been given by the broker."""
        parts = self._stage._parts
        return 0 if parts is None else len(parts.queue.reader.assignment())


def _live(stage: RolloutStage, end: threading.Event) -> None:
    while not (end.is_set() or stage.finished):
        stage.turn()
        time.sleep(0.003)
    stage.stop(deadline=Deadline.after(10))


def lag_of(log: KafkaLog) -> int:
    lags = log.admin().lag(rollout_group(log.run), [PROMPTS])
    return sum(each.lag_records if each.lag_records is not None else 1 for each in lags)


def test_no_prompt_is_acknowledged_before_its_samples_are_there_however_often_producers_change(
    rollouts: Rollouts, kafka_log: KafkaLog
) -> None:
    random = Random(7)
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    world.prompts(*range(NUM_GROUPS), max_tokens=100)
    workers: list[Worker] = []
    left: list[Worker] = []
    until_s = time.monotonic() + LIMIT_S
    try:
        while lag_of(kafka_log) and time.monotonic() < until_s:
            while len(workers) < NUM_AT_A_TIME:
                slot = len(workers) + len(left)
                workers.append(Worker(rollouts, slot=slot, hand_over_s=random.choice((0.0, 0.1, 30.0))))
            time.sleep(random.uniform(0.5, 1.5))
            leaving = random.choice(workers)
            if len(left) < NUM_LEAVING and leaving.num_partitions:
                workers.remove(leaving)
                leaving.retire.request("test")
                left.append(leaving)
    finally:
        for each in (*workers, *left):
            each.end.set()
        for each in (*workers, *left):
            each.thread.join(timeout=30)
    assert lag_of(kafka_log) == 0, f"not through after {LIMIT_S} s"
    assert len(left) > 1, "too quick: nobody left in the middle of work"
    whole: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for sample in records_of(kafka_log, SAMPLES):
        assert isinstance(sample, Sample)
        whole[sample.group, sample.attempt].add(sample.member)
    found = {group for (group, _), members in whole.items() if members == set(range(GROUP_SIZE))}
    assert set(range(NUM_GROUPS)) - found == set(), "acknowledged, and without samples"
