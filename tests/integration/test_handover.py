"""Groups that change engines on a real broker: one process leaves in the middle of them, another one goes on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from pipeline.engines.base import Generation
from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from schemas.records import Partial, Sample
from schemas.validation import check_sample
from tests.conftest import DATA_PARTITIONS
from tests.unit.producers.conftest import Rollouts, world_with_peer
from tests.unit.producers.world import events_of, records_of
from topics.catalog import PARTIALS, PROMPTS, SAMPLES, rollout_group
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog

pytestmark = pytest.mark.integration
NUM_GROUPS = 12
MADE = 20  # tokens of a sequence, before it changes its engine
RUN = {"partitions": DATA_PARTITIONS, "groups_per_step": 4, "group_size": 2, "max_staleness": 2, "max_steps": 100}


@pytest.fixture
def rollouts(kafka_log: KafkaLog, tmp_path: Path) -> Iterator[Rollouts]:
    world, peer = world_with_peer(kafka_log, folder=tmp_path, clock=SystemClock(), fields=RUN)
    made = Rollouts(world)
    yield made
    peer.stop()


class Halting(ScriptedEngine):
    """Stands still once each of its sequences has `MADE` tokens, however late anybody looks."""

    def step(self) -> list[Generation]:
        if tokens_so_far(self) >= MADE:
            self.tokens_per_step = 0
        return super().step()


def tokens_so_far(engine: ScriptedEngine) -> int:
    return min((len(each.tokens) for each in list(engine._held.values())), default=0)


class Turning:
    """A stage that turns on a thread of its own: members of one group must not wait for each other's turns."""

    def __init__(self, stage: RolloutStage) -> None:
        self.stage = stage
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def stop(self) -> None:
        """See it out."""
        self._end.set()
        self._thread.join(timeout=30)
        self.stage.stop(deadline=Deadline.after(10))

    def _turn(self) -> None:
        while not (self._end.is_set() or self.stage.finished):
            self.stage.turn()


def wait_until(done: Callable[[], bool], *, what: str) -> None:
    """Wait for a condition; asking takes time itself."""
    end_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end_s, f"waited 60 s for {what}"
        time.sleep(0.01)


def test_a_process_that_leaves_hands_its_groups_to_another_at_once(rollouts: Rollouts) -> None:
    world, engines = rollouts.world, (Halting(tokens_per_step=0), ScriptedEngine(tokens_per_step=0))
    world.lineage(1)
    world.publish(1, 0, command=True)
    stages = [rollouts.make(engine, slot=slot, hand_over_s=0) for slot, engine in enumerate(engines)]
    rollouts.stages.clear()
    turning = [Turning(stage) for stage in stages]
    try:
        check(rollouts, *turning)
    finally:
        for each in turning:
            each.stop()


def check(rollouts: Rollouts, leaving: Turning, staying: Turning) -> None:
    world = rollouts.world
    engines = [cast("ScriptedEngine", each.stage._started().backend.engine) for each in (leaving, staying)]
    metrics = [rollouts.context_of(each.stage).metrics for each in (leaving, staying)]
    wait_until(
        lambda: all(each.stage._started().weights.may_take_prompts for each in (leaving, staying)), what="weights"
    )
    readers = [each.stage._started().queue.reader for each in (leaving, staying)]
    wait_until(
        lambda: all(0 < len(reader.assignment()) < DATA_PARTITIONS for reader in readers), what="a share for each"
    )
    world.prompts(*range(NUM_GROUPS), max_tokens=200)
    wait_until(lambda: sum(engine.num_running for engine in engines) == 2 * NUM_GROUPS, what="all prompts to be taken")
    held = set(leaving.stage._started().generator.groups())
    assert 0 < len(held) < NUM_GROUPS
    engines[0].tokens_per_step = 1
    wait_until(lambda: tokens_so_far(engines[0]) == MADE, what="some tokens")
    rollouts.context_of(leaving.stage).retire.request("test")
    wait_until(lambda: leaving.stage.finished, what="the end of the one that leaves")
    leaving.stop()
    engines[1].tokens_per_step = 20
    wait_until(lambda: metrics[1].snapshot().get("groups_resumed") == len(held), what="the hand-over")

    def samples() -> list[Sample]:
        return [record for record in records_of(world.log, SAMPLES) if isinstance(record, Sample)]

    def lag() -> int:
        lags = world.log.admin().lag(rollout_group(world.log.run), [PROMPTS])
        return sum(each.lag_records if each.lag_records is not None else 1 for each in lags)

    wait_until(lambda: lag() == 0, what="acknowledgements")
    found = samples()
    counted = Counter((sample.group, sample.member) for sample in found)
    assert counted == {(group, member): 1 for group in range(NUM_GROUPS) for member in range(2)}
    assert {sample.producer for sample in found} == {rollouts.context_of(staying.stage).instance}
    for sample in found:
        check_sample(sample, group_size=2)
        assert len(sample.loss_mask) == 200
    given = [record for record in records_of(world.log, PARTIALS) if isinstance(record, Partial) and not record.written]
    assert {partial.group for partial in given} == held
    assert min(len(member.tokens) // 4 for partial in given for member in partial.members) == MADE
    assert sum(each.snapshot()["tokens_generated"] for each in metrics) == NUM_GROUPS * 2 * 200, (
        "no token was made twice"
    )
    assert [event["reason"] for event in events_of(world.log, "handed_over")] == ["retired"]
