"""A rollout producer that follows its engine's pressure, and says how far behind it begins groups."""

from __future__ import annotations

import pytest

from pipeline.engines.pressure import EnginePressure
from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.world import World, events_of, until
from topics.clock import ManualClock

SETTINGS = {"start_sequences": 8, "look_s": 1.0}


class LoadedEngine(ScriptedEngine):
    """Says what a test makes it say."""

    pressure: EnginePressure | None = None


@pytest.fixture
def world(rollouts: Rollouts) -> World:
    rollouts.world.lineage(1)
    rollouts.world.publish(1, 0, command=True)
    return rollouts.world


def turns(stage: RolloutStage, clock: ManualClock, *, num: int = 12) -> None:
    for _ in range(num):
        clock.advance(0.5)
        stage.turn()


def test_it_holds_what_pressure_allows_and_grows_with_it(rollouts: Rollouts, world: World, clock: ManualClock) -> None:
    world.prompts(*range(40), max_tokens=1000)
    engine = LoadedEngine(max_concurrent_sequences=64)
    stage = rollouts.make(engine, admission="pressure", max_sequences=64, pressure=SETTINGS)
    until(stage, lambda: engine.num_running == 8)
    engine.pressure = EnginePressure(measured_s=clock.now_s, kv_use_share=0.1, queued=0, preemptions=0)
    turns(stage, clock)
    assert engine.num_running == 8, "what it says is old by now"
    for second in range(5):
        engine.pressure = EnginePressure(measured_s=clock.now_s, kv_use_share=0.1, queued=0, preemptions=0)
        turns(stage, clock, num=2)
        assert engine.num_running <= 10, second
    until(stage, lambda: engine.num_running == 10)
    metrics = rollouts.metrics_of(stage)
    assert (metrics["admitted_sequences"], metrics["free_slots"]) == (10, 0)
    assert (metrics["kv_use_share"], metrics["queued_sequences"], metrics["preemptions"]) == (0.1, 0, 0)


def test_after_a_trim_nothing_is_taken_until_what_is_there_has_ended(
    rollouts: Rollouts, world: World, clock: ManualClock
) -> None:
    world.prompts(*range(40), max_tokens=30)
    engine = LoadedEngine(max_concurrent_sequences=64)
    stage = rollouts.make(engine, admission="pressure", max_sequences=64, pressure=SETTINGS)
    until(stage, lambda: engine.num_running == 8)
    for preemptions in (0, 3):
        engine.pressure = EnginePressure(measured_s=clock.now_s, preemptions=preemptions)
        turns(stage, clock, num=2)
    assert rollouts.metrics_of(stage)["admitted_sequences"] == 6
    assert engine.num_running == 8, "none is given up"
    until(stage, lambda: engine.num_running == 6)


def test_an_engine_that_says_nothing_is_filled_and_that_is_told(
    rollouts: Rollouts, world: World, clock: ManualClock
) -> None:
    world.prompts(*range(40), max_tokens=1000)
    engine = ScriptedEngine(max_concurrent_sequences=64)
    stage = rollouts.make(engine, admission="pressure", max_sequences=64, pressure=SETTINGS)
    until(stage, lambda: engine.num_running == 8)
    turns(stage, clock, num=30)
    assert engine.num_running == 64
    assert len(events_of(world.log, "pressure_unknown")) == 1
    assert "kv_use_share" not in rollouts.metrics_of(stage)


def test_groups_are_counted_by_how_far_behind_they_are_begun(rollouts: Rollouts, world: World) -> None:
    engine = ScriptedEngine()
    stage = rollouts.make(engine)
    world.prompts(0, 1)
    until(stage, lambda: rollouts.metrics_of(stage).get("groups_begun{behind=0}") == 2)
    world.publish(1, 1)  # not commanded, so it stays where it is
    until(stage, lambda: rollouts.metrics_of(stage)["versions_behind"] == 1)
    world.prompts(2)
    until(stage, lambda: rollouts.metrics_of(stage).get("groups_begun{behind=1}") == 1)
    assert rollouts.metrics_of(stage)["groups_begun{behind=0}"] == 2
