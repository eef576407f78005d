"""A rollout producer whose engine was killed and comes back, and one that meets a peer with bad chunks."""

from __future__ import annotations

import pytest

from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from schemas.records import Sample, StageEvent, Version
from tests.unit.pipeline.weights.helpers import Answer, faulty_peer
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.world import World, events_of, until
from topics.catalog import EVENTS, PROMPTS, SAMPLES
from topics.clock import ManualClock


def version(step: int) -> Version:
    return Version(lineage=1, step=step)


def turns(stage: RolloutStage, count: int = 30) -> None:
    for _ in range(count):
        stage.turn()


def heartbeats(rollouts: Rollouts, stage: RolloutStage) -> list[dict[str, str]]:
    rollouts.context_of(stage).events.heartbeat()
    return events_of(rollouts.world.log, "heartbeat")


def made_samples(world: World) -> list[Sample]:
    return [record for record in world.read(SAMPLES) if isinstance(record, Sample)]


@pytest.mark.parametrize("learner_is_up", [True, False])
def test_a_killed_engine_that_comes_back_at_version_20_makes_no_sample_of_its_own_weights(
    rollouts: Rollouts, learner_is_up: bool
) -> None:
    """Case 40: with nobody there to fetch from it waits, and says what for; then all it makes is of what is current."""
    world, first = rollouts.world, ScriptedEngine()
    world.lineage(1)
    alive = world.seeds
    stage = rollouts.make(first, scheduler_silence_s=1e6)
    for step in range(21):
        world.publish(1, step)
    world.command("publish", version=version(20))
    until(stage, lambda: first.version == version(20))
    parts = stage._started()
    parts.weights.close()  # as `kill -9`: what it had on disk stays
    parts.queue.close()  # its session ended
    rollouts.stages.remove(stage)

    world.seeds = alive if learner_is_up else ("http://127.0.0.1:9",)
    for step in range(21, 24):  # beyond the bound of two, seen from version 20 that is on the disk
        world.publish(1, step)
    world.command("publish", version=version(23))
    world.prompts(0)
    second = ScriptedEngine()
    again = rollouts.make(second, scheduler_silence_s=1e6)
    if not learner_is_up:
        until(again, lambda: len(events_of(world.log, "fetch_failed")) >= 2, what="a second try")
        turns(again)
        assert (len(made_samples(world)), second.version) == (0, None)
        assert "waiting_for_weights" in {event["phase"] for event in heartbeats(rollouts, again)}
        world.seeds = alive
        world.publish(1, 24, command=True)
    until(again, lambda: len(made_samples(world)) == 2)
    assert {run.version for each in made_samples(world) for run in each.version_runs} == {
        version(23 if learner_is_up else 24)
    }


@pytest.mark.parametrize("fault", ["one bit", "cut", "missing", "exchanged"])
def test_a_peer_that_sends_bad_chunks_is_named_and_the_version_comes_from_another(
    rollouts: Rollouts, fault: str
) -> None:
    """Case 41: beside a good peer. The engine ends on the published version, and its event names the bad peer."""
    world, engine = rollouts.world, ScriptedEngine()
    world.lineage(1)

    def spoilt(digest: str) -> Answer:
        whole = world.store.get(digest)
        if fault == "missing":
            return Answer(b"", status=404)
        if fault == "cut":
            return Answer(whole[:-1])
        return Answer(whole[:-1] + bytes([whole[-1] ^ 1]) if fault == "one bit" else whole[::-1])

    with faulty_peer(spoilt) as bad:
        world.seeds = (bad, *world.seeds)
        world.publish(1, 3, command=True)
        stage = rollouts.make(engine, scheduler_silence_s=1e6)
        until(stage, lambda: engine.version == version(3))
        told = [event["fault"] for event in events_of(world.log, "peer_fault")]
    world.prompts(0)
    until(stage, lambda: len(made_samples(world)) == 2)
    assert {tuple(run.version for run in each.version_runs) for each in made_samples(world)} == {(version(3),)}
    assert all(bad in each for each in told)
    assert told or fault == "missing", "a peer that lacks a chunk is not at fault"


def test_a_prompt_that_does_not_come_back_is_named_and_no_offset_is_committed_past_it(
    rollouts: Rollouts, clock: ManualClock
) -> None:
    """Case 6: of the work queue of rollouts, where prompts finish out of order."""
    world, engine = rollouts.world, ScriptedEngine()
    world.lineage(1)
    world.publish(1, 0, command=True)
    stage = rollouts.make(engine, scheduler_silence_s=1e6, stuck_after_s=60.0)
    until(stage, lambda: engine.version == version(0))
    engine.tokens_per_step = 0  # it hangs
    world.prompts(0, 4, 1)
    until(stage, lambda: rollouts.metrics_of(stage).get("prompts_in_flight") == 3)
    turns(stage)
    assert stuck(world) == []
    clock.advance(61.0)
    turns(stage)
    assert stuck(world) == [("0", 0, 0), ("0", 1, 4), ("1", 0, 1)]
    assert {each.committed for each in world.log.admin().lag(GROUP.format(world.log.run), [PROMPTS])} <= {None, 0}
    engine.tokens_per_step = 1
    until(stage, lambda: len(made_samples(world)) == 6)
    turns(stage)
    lag = world.log.admin().lag(GROUP.format(world.log.run), [PROMPTS])
    assert [each.committed for each in lag[:2]] == [2, 1]
    assert len(stuck(world)) == 3, "each is named once"


GROUP = "rlweave.{}.rollout"


def stuck(world: World) -> list[tuple[str, float, float]]:
    found = [record for record in world.read(EVENTS) if isinstance(record, StageEvent)]
    told = [event for event in found if event.name == "prompt_stuck"]
    return [(event.details["partition"], event.gauges["offset"], event.gauges["group"]) for event in told]
