"""A rollout producer under publish commands with waves, targets and rates, and under forged records."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipeline.engines.scripted import ScriptedEngine
from pipeline.unbacked import PATIENCE_S
from producers.rollout.chooser import VersionChooser
from producers.rollout.stage import RolloutStage
from schemas.records import DeadLetter, Sample, StageEvent, Version
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout_deltas import BigEngine, Line, serves
from tests.unit.producers.world import World, events_of, records_of, started, until
from topics.catalog import DEAD_LETTERS, EVENTS, SAMPLES
from topics.clock import ManualClock


def v(step: int, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def staged(stage: RolloutStage) -> Version | None:
    """What is fetched, verified and held back."""
    ready = stage._started().weights._ready
    return None if ready is None else ready.manifest.version


def is_staged(stage: RolloutStage, step: int) -> bool:
    return staged(stage) == v(step)


def chooser_of(stage: RolloutStage) -> VersionChooser:
    return stage._started().weights._chooser


def patient(stage: RolloutStage) -> VersionChooser:
    """Make the engine take 50 versions for within the bound, so that it does not help itself."""
    chooser = chooser_of(stage)
    chooser._run = chooser._run.model_copy(update={"max_staleness": 50})
    return chooser


def turns(stage: RolloutStage, count: int = 30) -> None:
    for _ in range(count):
        stage.turn()


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def world(rollouts: Rollouts) -> World:
    rollouts.world.lineage(1)
    rollouts.world.publish(1, 0, command=True)
    return rollouts.world


@pytest.fixture
def stage(rollouts: Rollouts, world: World, engine: ScriptedEngine) -> RolloutStage:
    """Serves version 0 and is at one with the scheduler."""
    made = rollouts.make(engine, scheduler_silence_s=1e6)
    until(made, lambda: engine.version == v(0))
    return made


def name_of(stage: RolloutStage) -> str:
    return stage._context.instance


def test_all_fetch_at_once_and_load_with_their_wave(world: World, stage: RolloutStage, engine: ScriptedEngine) -> None:
    waves = (("another",), (name_of(stage),), ("a-third",))
    world.publish(1, 1)
    world.command("publish", version=v(1), waves=waves, wave=0)
    until(stage, lambda: is_staged(stage, 1), what="a version staged before its wave")
    world.prompts(0)
    until(stage, lambda: len(world.read(SAMPLES)) == 2, what="generation while a version is held back")
    assert engine.version == v(0)
    made = [record for record in world.read(SAMPLES) if isinstance(record, Sample)]
    assert {run.version for sample in made for run in sample.version_runs} == {v(0)}
    world.command("publish", version=v(1), waves=waves, wave=1)
    until(stage, lambda: engine.version == v(1))
    assert staged(stage) is None


def test_who_is_in_no_wave_loads_with_the_last_one(world: World, stage: RolloutStage, engine: ScriptedEngine) -> None:
    world.publish(1, 1)
    world.command("publish", version=v(1), waves=(("x",), ("y",)), wave=0)
    until(stage, lambda: is_staged(stage, 1))
    turns(stage)
    assert engine.version == v(0)
    world.command("publish", version=v(1), waves=(("x",), ("y",)), wave=1)
    until(stage, lambda: engine.version == v(1))


def test_who_is_no_target_stays(world: World, stage: RolloutStage, engine: ScriptedEngine) -> None:
    world.publish(1, 1)
    world.command("publish", version=v(1), targets=("x", "y"))
    turns(stage)
    assert (engine.version, staged(stage)) == (v(0), None)
    world.command("publish", version=v(1), targets=("x", name_of(stage)))
    until(stage, lambda: engine.version == v(1))


def test_a_newer_version_takes_the_place_of_one_held_back(
    world: World, stage: RolloutStage, engine: ScriptedEngine
) -> None:
    waves = (("x",), (name_of(stage),))
    world.publish(1, 1)
    world.command("publish", version=v(1), waves=waves, wave=0)
    until(stage, lambda: is_staged(stage, 1))
    world.publish(1, 2)
    world.command("publish", version=v(2), waves=waves, wave=0)
    patient(stage)
    until(stage, lambda: is_staged(stage, 2))
    assert engine.version == v(0)
    world.command("publish", version=v(2), waves=waves, wave=1)
    until(stage, lambda: engine.version == v(2))
    assert [each["version"] for each in events_of(world.log, "swapped")] == ["1.0", "1.2"]
    assert events_of(world.log, "stage_superseded") == [{"version": "1.1", "by": "1.2"}]


def test_deltas_go_on_from_a_state_that_was_never_loaded(rollouts: Rollouts) -> None:
    """The state held back is the base of the next delta, which changes it in place."""
    rollouts.world.lineage(1)
    line, engine = Line(rollouts.world), BigEngine()
    first = line.publish(0)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: serves(engine, first))
    patient(stage)
    for step in range(1, 5):
        newest = line.publish(step, quiet=True)
        rollouts.world.command("publish", version=v(step), waves=(("x",), ("y",)), wave=0)
        until(stage, lambda at=step: is_staged(stage, at))  # type: ignore[misc]
        assert serves(engine, first)
    rollouts.world.command("publish", version=v(4), waves=(("x",), ("y",)), wave=1)
    until(stage, lambda: serves(engine, newest))
    assert engine.num_loads == 2
    assert rollouts.metrics_of(stage)["weight_bytes{direction=received}"] < 100_000 * 1.5, "deltas only"


def test_an_engine_too_far_behind_loads_without_leave(
    world: World, stage: RolloutStage, engine: ScriptedEngine
) -> None:
    waves = (("x",), (name_of(stage),))
    world.publish(1, 1)
    world.command("publish", version=v(1), waves=waves, wave=0)
    until(stage, lambda: is_staged(stage, 1))
    world.publish(1, 2)  # eta is 2
    world.command("publish", version=v(2), waves=waves, wave=0)
    until(stage, lambda: engine.version == v(2), what="help to itself")
    assert engine.version == v(2)


def test_without_a_scheduler_what_is_held_back_is_loaded(
    rollouts: Rollouts, world: World, engine: ScriptedEngine, clock: ManualClock
) -> None:
    stage = rollouts.make(engine, scheduler_silence_s=1000.0)
    until(stage, lambda: engine.version == v(0))
    world.publish(1, 1)
    world.command("publish", version=v(1), waves=(("x",), (name_of(stage),)), wave=0)
    until(stage, lambda: is_staged(stage, 1))
    turns(stage)
    assert engine.version == v(0)
    clock.advance(1001.0)
    until(stage, lambda: engine.version == v(1))


def test_an_engine_that_serves_nothing_of_use_needs_no_leave(
    rollouts: Rollouts, world: World, engine: ScriptedEngine
) -> None:
    world.command("publish", version=v(0), waves=(("x",), ("y",)), wave=0)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: engine.version == v(0), what="the first version of a cold engine")
    world.lineage(2)  # its parent is gone, and with it version 1.0
    world.publish(2, 0)
    world.command("publish", version=v(0, lineage=2), waves=(("x",), (name_of(stage),)), wave=0)
    until(stage, lambda: engine.version == v(0, lineage=2), what="leaving an abandoned branch")
    turns(stage)
    assert engine.version == v(0, lineage=2), "and it stays there"


def test_an_older_version_is_loaded_with_leave_for_a_newer_one_and_not_without(
    world: World, stage: RolloutStage
) -> None:
    """What a link slower than the steps brings is late, and better than what is served."""
    world.publish(1, 1)
    world.publish(1, 2)
    chooser = patient(stage)
    waves = (("x",), (name_of(stage),))
    world.command("publish", version=v(2), waves=waves, wave=0)
    stage._control.poll(wait_s=0.0)
    assert not chooser.may_load(v(1), served=v(0))
    world.command("publish", version=v(2), waves=waves, wave=1)
    stage._control.poll(wait_s=0.0)
    assert chooser.may_load(v(1), served=v(0))
    assert not chooser.may_load(v(1), served=v(1)), "it is served"
    world.publish(1, 3)
    stage._control.poll(wait_s=0.0)
    assert not chooser.may_load(v(3), served=v(0)), "nobody gave leave for it"


def test_the_notice_of_a_swap_tells_the_new_version(world: World, stage: RolloutStage, engine: ScriptedEngine) -> None:
    world.publish(1, 1, command=True)
    until(stage, lambda: engine.version == v(1))
    swaps = [event for event in records_of(world.log, EVENTS) if isinstance(event, StageEvent)]
    assert [event.version for event in swaps if event.name == "swapped"] == [v(0), v(1)]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({}, None),
        ({"weights": 2.5e6}, 2.5e6),
        ({"samples": 1.0}, None),
        ({"weights": 0.0}, None),
        ({"weights": -1.0}, None),
        ({"weights": math.inf}, None),
        ({"weights": math.nan}, None),
    ],
)
def test_the_rate_of_a_fetch_is_the_commands(
    world: World, stage: RolloutStage, rates: dict[str, float], expected: float | None
) -> None:
    world.command("publish", version=v(0), rates=rates)
    stage._control.poll(wait_s=0.0)
    assert chooser_of(stage).rate_bytes_s == expected


def test_a_manifest_that_no_step_stands_behind_is_not_followed(
    world: World, stage: RolloutStage, engine: ScriptedEngine, clock: ManualClock
) -> None:
    """Case 37: a version counts when it was made, not when somebody says so."""
    for forged in (v(10**9), v(10**9 + 1), v(10**9 + 2), v(4, lineage=9)):
        world.publish(forged.lineage, forged.step, backed=False)
        world.command("publish", version=forged)
    turns(stage)
    assert (engine.version, staged(stage)) == (v(0), None)
    assert not chooser_of(stage).is_degraded(v(0)), "it is not behind"
    world.prompts(0)
    until(stage, lambda: len(world.read(SAMPLES)) == 2, what="prompts taken as before")
    clock.advance(PATIENCE_S + 1)
    turns(stage)
    named = [each["version"] for each in events_of(world.log, "manifest_ignored")]
    assert named == ["1.1000000000", "1.1000000001", "1.1000000002", "9.4"]
    world.publish(1, 1, command=True)
    until(stage, lambda: engine.version == v(1))
    assert len(events_of(world.log, "manifest_ignored")) == 4, "each is named once"


def test_a_manifest_that_comes_before_its_outcomes_waits_for_them(
    world: World, stage: RolloutStage, engine: ScriptedEngine
) -> None:
    world.publish(1, 1, backed=False, command=True)
    turns(stage)
    assert engine.version == v(0)
    world.close(4_000_000, step=1)
    until(stage, lambda: engine.version == v(1))
    assert events_of(world.log, "manifest_ignored") == []


def test_a_forged_epoch_silences_no_scheduler(world: World, stage: RolloutStage, engine: ScriptedEngine) -> None:
    world.command("publish", version=v(0), epoch=2**63 - 1)
    turns(stage)
    world.publish(1, 1)
    world.command("publish", version=v(1), epoch=2)
    until(stage, lambda: engine.version == v(1))
    (letter,) = world.read(DEAD_LETTERS)
    assert isinstance(letter, DeadLetter)
    assert "epoch 9223372036854775807" in letter.error


def test_heartbeats_tell_the_domain_when_there_is_one(rollouts: Rollouts, world: World) -> None:
    for domain in ("", "east"):
        stage = rollouts.make(ScriptedEngine(), start=False)
        weights = stage._setup.weights.model_copy(update={"domain": domain})
        stage._setup = replace(stage._setup, weights=weights)
        started(stage)
        stage._context.events.heartbeat()
    assert [each.get("domain") for each in events_of(world.log, "heartbeat")] == [None, "east"]
