"""Which weights a rollout producer serves: cold starts, publish commands, degraded mode, lineages, failures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from pipeline.engines.base import StateTensor
from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from schemas.errors import EngineError
from schemas.records import Sample, Version
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.world import World, events_of, until
from topics.catalog import SAMPLES, WEIGHTS
from topics.clock import Deadline, ManualClock


def version(step: int, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def serves(engine: ScriptedEngine, wanted: Version) -> bool:
    return engine.version == wanted


def turns(stage: RolloutStage, count: int = 30) -> None:
    for _ in range(count):
        stage.turn()


def num_samples(world: World) -> int:
    return len(world.read(SAMPLES))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


def test_a_cold_engine_takes_no_prompts(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    """Case 40: up is not ready."""
    world = rollouts.world
    world.lineage(1)
    world.prompts(0)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    turns(stage)
    assert num_samples(world) == 0
    assert rollouts.metrics_of(stage)["prompts_in_flight"] == 0
    world.publish(1, 0, command=True)
    until(stage, lambda: num_samples(world) == 2)


def test_a_restarted_engine_serves_the_published_version_not_its_own(rollouts: Rollouts) -> None:
    """Case 40, at version 20, with the learner down: its peer still serves."""
    world = rollouts.world
    world.lineage(1)
    for step in range(21):
        world.publish(1, step, command=True)
    world.prompts(0)
    stage = rollouts.make(ScriptedEngine())
    until(stage, lambda: num_samples(world) == 2)
    made = [record for record in world.read(SAMPLES) if isinstance(record, Sample)]
    assert {run.version for sample in made for run in sample.version_runs} == {version(20)}


def test_without_a_peer_a_cold_engine_waits_and_says_why(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.seeds = ("http://127.0.0.1:9",)
    world.lineage(1)
    world.publish(1, 0, command=True)
    world.prompts(0)
    stage = rollouts.make(engine)
    until(stage, lambda: len(events_of(world.log, "fetch_failed")) >= 2, what="a second try")
    assert num_samples(world) == 0
    assert engine.version is None


def test_the_publish_command_decides(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: engine.version == version(0))
    world.publish(1, 1)  # staged, not yet given out; one behind is within the bound of two
    turns(stage)
    assert engine.version == version(0)
    assert rollouts.metrics_of(stage)["versions_behind"] == 1
    world.command("publish", version=version(1))
    until(stage, lambda: engine.version == version(1))


def test_commands_of_a_replaced_scheduler_are_ignored(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0)
    world.command("publish", version=version(0), epoch=2)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: engine.version == version(0))
    world.publish(1, 1)
    world.command("publish", version=version(1), epoch=1)
    turns(stage)
    assert engine.version == version(0)


def test_a_silent_scheduler_is_done_without(rollouts: Rollouts, engine: ScriptedEngine, clock: ManualClock) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, scheduler_silence_s=1e6, stagger_s=10.0)
    until(stage, lambda: engine.version == version(0))
    world.publish(1, 1)
    turns(stage, 5)
    assert engine.version == version(0)
    clock.advance(1e6)
    begin_s = clock.now_s
    until(stage, lambda: stage._started().weights._staging.version == version(1))
    assert clock.now_s - begin_s <= 10.1
    until(stage, lambda: engine.version == version(1))


def test_engines_stagger_their_unasked_fetches(rollouts: Rollouts, clock: ManualClock) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0)
    clock.advance(1000.0)
    due = []
    for slot in range(4):
        stage = rollouts.make(ScriptedEngine(), slot=slot, stagger_s=50.0, scheduler_silence_s=0.001)
        clock.advance(1.0)
        chooser = stage._started().weights._chooser
        assert chooser.choose(None) is None
        assert chooser._unasked_s is not None
        due.append(chooser._unasked_s - clock.now_s)
    assert all(0 <= offset <= 50 for offset in due)
    assert max(due) - min(due) > 1.0


def test_an_engine_too_far_behind_fetches_by_itself(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: engine.version == version(0))
    world.publish(1, 1)
    world.publish(1, 2)  # eta is 2
    until(stage, lambda: engine.version == version(2))
    assert [each["version"] for each in events_of(world.log, "swapped")] == ["1.0", "1.2"], "1.1 alone was no reason"


def test_an_engine_beyond_the_bound_takes_no_prompts(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    """Case 40."""
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: engine.version == version(0))
    world.seeds = ("http://127.0.0.1:9",)  # newer versions cannot be fetched
    for step in (1, 2, 3):
        world.publish(1, step)
    turns(stage)
    world.prompts(0)
    turns(stage, 60)
    assert num_samples(world) == 0
    assert engine.version == version(0)


def test_a_restored_learner_takes_engines_back(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    """Promise 3: engines follow a higher lineage to a lower step; on a void version they take nothing new."""
    world = rollouts.world
    world.lineage(1)
    for step in range(6):
        world.publish(1, step, command=True)
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    until(stage, lambda: engine.version == version(5))
    for step in range(4):  # pruned: what is left of lineage 1 is void
        world.plain.write_raw(WEIGHTS, key=f"1.{step}".encode(), value=None, partition=0)
    world.lineage(2, parent=1, branch_step=3)
    world.prompts(0)
    turns(stage, 60)
    assert num_samples(world) == 0
    assert engine.version == version(5)
    world.publish(2, 3, command=True)
    until(stage, lambda: num_samples(world) == 2)
    assert engine.version == version(3, lineage=2)


def test_a_failed_fetch_leaves_the_old_version_serving(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine)
    until(stage, lambda: engine.version == version(0))
    good, world.seeds = world.seeds, ("http://127.0.0.1:9",)
    world.publish(1, 1, command=True)
    world.prompts(0)
    until(stage, lambda: len(events_of(world.log, "fetch_failed")) >= 1 and num_samples(world) == 2)
    assert engine.version == version(0)
    world.seeds = good
    world.publish(1, 2, command=True)
    until(stage, lambda: engine.version == version(2))


def test_a_version_the_engine_refuses_is_told_and_retried(rollouts: Rollouts) -> None:
    class Stubborn(ScriptedEngine):
        refusals = 2

        def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
            if version.step == 1 and self.refusals > 0:
                self.refusals -= 1
                raise EngineError("names differ")
            super().load(version, state)

    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    engine = Stubborn()
    stage = rollouts.make(engine)
    until(stage, lambda: engine.version == version(0))
    world.publish(1, 1, command=True)
    until(stage, lambda: engine.version == version(1))
    assert [details["version"] for details in events_of(world.log, "load_failed")] == ["1.1", "1.1"]


def test_a_fetch_that_became_useless_is_given_up(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, fetch_deadline_s=600.0)
    until(stage, lambda: engine.version == version(0))
    good, world.seeds = world.seeds, ("http://127.0.0.1:9",)  # this fetch gets nowhere
    world.publish(1, 1, command=True)
    until(stage, lambda: stage._started().weights._staging.version == version(1))
    world.seeds = good
    for step in (2, 3, 4):
        world.publish(1, step, command=True)
    until(stage, lambda: engine.version == version(4))
    assert {"version": "1.1"} in events_of(world.log, "fetch_superseded")


def test_generation_goes_on_while_weights_are_staged(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, fetch_deadline_s=600.0)
    until(stage, lambda: engine.version == version(0))
    world.seeds = ("http://127.0.0.1:9",)
    world.publish(1, 1, command=True)
    until(stage, lambda: stage._started().weights._staging.version == version(1))
    world.prompts(0)
    until(stage, lambda: num_samples(world) == 2)
    assert stage._started().weights._staging.version == version(1)
    stage.stop(deadline=Deadline.after(5))


def test_only_the_latest_version_stays_pinned(rollouts: Rollouts, engine: ScriptedEngine) -> None:
    world = rollouts.world
    world.lineage(1)
    stage = rollouts.make(engine)
    for step in range(3):
        world.publish(1, step, command=True)
        until(stage, partial(serves, engine, version(step)))
    assert list(stage._started().weights._staging._store.pins()) == ["rollout-0.1.2"]
    assert rollouts.metrics_of(stage)["weight_bytes{direction=received}"] == 24


def test_pins_of_an_engine_that_is_gone_end_with_the_next_version_of_another(rollouts: Rollouts) -> None:
    """Both share the store of their host."""
    world = rollouts.world
    world.lineage(1)
    gone, other = ScriptedEngine(), ScriptedEngine()
    stages = [rollouts.make(gone, slot=0), rollouts.make(other, slot=1)]
    world.publish(1, 0, command=True)
    until(stages[0], partial(serves, gone, version(0)))
    until(stages[1], partial(serves, other, version(0)))
    store = stages[1]._started().weights._staging._store
    assert set(store.pins()) == {"rollout-0.1.0", "rollout-1.1.0"}
    stages[0].stop(deadline=Deadline.after(5))
    world.publish(1, 1, command=True)
    until(stages[1], partial(serves, other, version(1)))
    assert set(store.pins()) == {"rollout-1.1.1"}
