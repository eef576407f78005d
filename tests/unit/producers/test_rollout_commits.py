"""The rollout producer while offsets cannot be committed."""

from __future__ import annotations

from pipeline.engines.scripted import ScriptedEngine
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout import begin, committed, finish
from tests.unit.producers.world import events_of, until
from topics.clock import ManualClock
from topics.memory import MemoryLog
from topics.queue import COMMIT_RETRY_S


def test_a_coordinator_that_is_away_stops_no_generation(rollouts: Rollouts, clock: ManualClock) -> None:
    world = begin(rollouts)
    stage = rollouts.make(ScriptedEngine())
    until(stage, lambda: stage._started().weights.may_take_prompts, what="weights")
    assert isinstance(world.log, MemoryLog)
    world.log.broker.coordinator_away = True
    world.prompts(0, 1)
    assert len(finish(rollouts, stage, num_samples=4)) == 4
    world.prompts(2)
    assert len(finish(rollouts, stage, num_samples=6)) == 6
    assert committed(world) == {}
    for _ in range(2):
        clock.advance(COMMIT_RETRY_S)
        stage.turn()
    (delayed,) = events_of(world.log, "commit_delayed")
    assert "coordinator is away" in delayed["why"]
    world.log.broker.coordinator_away = False
    clock.advance(COMMIT_RETRY_S)
    until(stage, lambda: sum(committed(world).values()) == 3, what="commits")
