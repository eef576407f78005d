"""The rollout producer: acknowledgements, skips, failures, rebalances, and the truth of version labels."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from pipeline.engines.base import Generation, GenerationRequest, StateTensor
from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from schemas.errors import DeliveryError, EngineError
from schemas.packed import unpack_i32
from schemas.records import Sample, Version
from schemas.validation import check_sample
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.crash import CrashingLog, Fuse, Killed
from tests.unit.producers.world import World, events_of, until
from topics.catalog import PROMPTS, SAMPLES, Topic
from topics.clock import Deadline
from topics.memory import MemoryLog
from topics.memory.writer import MemoryWriter


def samples(world: World) -> list[Sample]:
    return [record for record in world.read(SAMPLES) if isinstance(record, Sample)]


def committed(world: World) -> dict[int, int]:
    lags = world.log.admin().lag(f"rlweave.{world.log.run}.rollout", [PROMPTS])
    return {lag.partition: lag.committed for lag in lags if lag.committed}


def begin(rollouts: Rollouts) -> World:
    rollouts.world.lineage(1)
    rollouts.world.publish(1, 0, command=True)
    return rollouts.world


def finish(rollouts: Rollouts, stage: RolloutStage, *, num_samples: int) -> list[Sample]:
    """Turn until so many samples are there and their prompts acknowledged."""
    until(stage, lambda: len(samples(rollouts.world)) >= num_samples, what=f"{num_samples} samples")
    until(stage, lambda: rollouts.metrics_of(stage)["prompts_in_flight"] == 0, what="acknowledgements")
    return samples(rollouts.world)


def test_samples_of_a_group(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1, 2)
    stage = rollouts.make(ScriptedEngine())
    found = finish(rollouts, stage, num_samples=6)
    assert Counter((sample.group, sample.member) for sample in found) == {(n, m): 1 for n in range(3) for m in range(2)}
    for group in range(3):
        assert len({sample.attempt for sample in found if sample.group == group}) == 1
    assert len({sample.attempt for sample in found}) == 3
    for sample in found:
        check_sample(sample, group_size=2)
        assert sample.seed == 1000 * sample.group + sample.member
        assert (sample.answer, sample.metadata, sample.prompt_text) == ("7", {"level": "1"}, "4 + 3 =")
    until(stage, lambda: sum(committed(world).values()) == 3, what="commits")
    metrics = rollouts.metrics_of(stage)
    assert metrics["samples_made{result=completed}"] == 6
    assert metrics["tokens_generated"] == 24


def test_groups_larger_than_the_engine_go_through_in_parts(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(*range(4))
    stage = rollouts.make(ScriptedEngine(max_concurrent_sequences=1))
    assert len(finish(rollouts, stage, num_samples=8)) == 8


def test_prompts_are_pulled_by_free_slots(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(*range(12), max_tokens=100)
    engine = ScriptedEngine(max_concurrent_sequences=4)
    stage = rollouts.make(engine)
    until(stage, lambda: engine.num_running == 4)
    for _ in range(20):
        stage.turn()
    assert rollouts.metrics_of(stage)["prompts_in_flight"] == 2


class LossyWriter(MemoryWriter):
    """Reports, at the flush, that a record was not written."""

    def flush(self, *, deadline: Deadline) -> None:
        raise DeliveryError("the broker went away")


def test_a_delivery_error_acknowledges_nothing(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1)
    stage = rollouts.make(ScriptedEngine())
    writer = stage._started().output._writer
    writer.__class__ = LossyWriter
    with pytest.raises(DeliveryError):
        until(stage, lambda: False)
    with pytest.raises(DeliveryError):
        stage.stop(deadline=Deadline.after(1))
    assert committed(world) == {}
    assert len(finish(rollouts, rollouts.make(ScriptedEngine()), num_samples=8)) == 8


@pytest.mark.parametrize(
    "fuse", range(12)
)  # two flushes with two prompts at a time: 8 writes and 4 moments around flushes
def test_a_kill_at_any_write_loses_nothing(rollouts: Rollouts, memory_log: MemoryLog, fuse: int) -> None:
    world = begin(rollouts)
    world.prompts(*range(4))
    crashing = CrashingLog(memory_log, Fuse(fuse))
    dying = rollouts.make(ScriptedEngine(), log=crashing, max_prompts_in_flight=2)
    with pytest.raises(Killed):
        until(dying, lambda: False)
    complete = Counter((sample.group, sample.attempt) for sample in samples(world))
    num_acknowledged = sum(committed(world).values())
    assert num_acknowledged <= sum(1 for count in complete.values() if count == 2)
    crashing.bury()
    successor = rollouts.make(ScriptedEngine(), slot=1)
    until(successor, lambda: sum(committed(world).values()) == 4, what="every prompt acknowledged")
    attempts = Counter((sample.group, sample.attempt) for sample in samples(world))
    assert {group for (group, _), count in attempts.items() if count == 2} == {0, 1, 2, 3}


def test_closed_groups_are_skipped_and_acknowledged(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1, 2)
    world.close(0, 2, result="dropped")
    stage = rollouts.make(ScriptedEngine())
    assert {sample.group for sample in finish(rollouts, stage, num_samples=2)} == {1}
    until(stage, lambda: sum(committed(world).values()) == 3)
    assert rollouts.metrics_of(stage)["groups_skipped"] == 2


def test_a_group_closed_in_flight_is_aborted(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1, max_tokens=500)
    engine = ScriptedEngine()
    stage = rollouts.make(engine)
    until(stage, lambda: engine.num_running == 4)
    world.close(1, result="dropped")
    until(stage, lambda: engine.num_running == 2)
    assert {sample.group for sample in finish(rollouts, stage, num_samples=2)} == {0}
    assert rollouts.metrics_of(stage)["groups_skipped"] == 1
    until(stage, lambda: sum(committed(world).values()) == 2)


def test_outcomes_of_an_abandoned_branch_close_nothing(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0)
    world.close(0, step=5)
    world.lineage(2, parent=1, branch_step=3)
    world.publish(2, 3, command=True)
    stage = rollouts.make(ScriptedEngine())
    assert len(finish(rollouts, stage, num_samples=2)) == 2


def test_invalid_prompts_end_as_failures(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, text="x" * 2000)
    world.prompts(1, text=" ")
    world.prompts(2)
    stage = rollouts.make(ScriptedEngine(context_tokens=64))
    found = finish(rollouts, stage, num_samples=6)
    assert Counter((sample.group, sample.failure) for sample in found) == {
        (0, "prompt_invalid"): 2,
        (1, "prompt_invalid"): 2,
        (2, None): 2,
    }


class FailingEngine(ScriptedEngine):
    """Fails in its `steps`-th steps, as an engine does whose computation broke."""

    def __init__(self, *, failing: set[int]) -> None:
        super().__init__()
        self.failing = failing
        self.num_steps = 0

    def step(self) -> list[Generation]:
        self.num_steps += 1
        if self.num_steps in self.failing:
            self._held.clear()
            self._version = None
            raise EngineError("out of memory")
        return super().step()


def test_an_engine_failure_fails_whole_groups_and_the_engine_comes_back(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1)
    engine = FailingEngine(failing={3})
    stage = rollouts.make(engine)
    found = finish(rollouts, stage, num_samples=4)
    assert Counter((sample.group, sample.failure) for sample in found) == {
        (0, "engine_failed"): 2,
        (1, "engine_failed"): 2,
    }
    world.prompts(2)
    found = finish(rollouts, stage, num_samples=6)
    assert [sample.failure for sample in found if sample.group == 2] == [None, None]


def test_an_engine_that_keeps_failing_ends_the_process_and_keeps_its_prompts(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(*range(8))
    engine = FailingEngine(failing=set(range(1, 1000)))
    stage = rollouts.make(engine, max_prompts_in_flight=1)
    with pytest.raises(EngineError, match="3 times in a row"):
        until(stage, lambda: False)
    assert len(samples(world)) <= 4


def test_a_refused_request_fails_its_group_only(rollouts: Rollouts) -> None:
    class Picky(ScriptedEngine):
        def submit(self, requests: list[GenerationRequest]) -> None:  # type: ignore[override]
            if any(request.seed == 1001 for request in requests):
                raise EngineError("seed 1001 is not liked")
            super().submit(requests)

    world = begin(rollouts)
    world.prompts(0, 1, 2)
    found = finish(rollouts, rollouts.make(Picky()), num_samples=6)
    assert Counter((sample.group, sample.failure) for sample in found) == {
        (0, None): 2,
        (1, "engine_failed"): 2,
        (2, None): 2,
    }


def test_a_sample_over_the_limit_tells_its_group(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    world = begin(rollouts)
    small = Topic(name="samples", records=(Sample,), partitions="data", max_record_bytes=500)
    monkeypatch.setattr("producers.rollout.output.SAMPLES", small)
    world.prompts(0, max_tokens=200)
    world.prompts(1, max_tokens=2)
    found = finish(rollouts, rollouts.make(ScriptedEngine()), num_samples=4)
    assert Counter((sample.group, sample.failure) for sample in found) == {(0, "too_large"): 2, (1, None): 2}


def test_a_revoked_partition_is_finished_but_not_committed(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(*range(4), max_tokens=60)
    engine, other_engine = ScriptedEngine(), ScriptedEngine()
    stage = rollouts.make(engine)
    until(stage, lambda: engine.num_running == 8)
    other = rollouts.make(other_engine, slot=1)

    def moved() -> bool:
        stage.turn()
        return other_engine.num_running == 4

    until(other, moved, what="two partitions moving over")
    until(stage, lambda: len(samples(world)) >= 8, what="all four groups finished by the first")
    assert {sample.producer for sample in samples(world)} == {rollouts.context_of(stage).instance}
    until(stage, lambda: sum(committed(world).values()) == 2, what="its own two acknowledged")
    until(other, lambda: sum(committed(world).values()) == 4, what="the moved ones acknowledged by their new holder")


def test_stop_gives_prompts_in_flight_back(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1, max_tokens=500)
    world.prompts(2, max_tokens=2)
    engine = ScriptedEngine()
    stage = rollouts.make(engine)
    until(stage, lambda: len(samples(world)) == 2)
    stage.stop(deadline=Deadline.after(5))
    assert sum(committed(world).values()) == 1
    assert len(samples(world)) == 2
    finish(rollouts, rollouts.make(ScriptedEngine()), num_samples=6)


def test_drain_takes_no_more(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.command("drain", drain=True)
    world.prompts(0)
    engine = ScriptedEngine()
    stage = rollouts.make(engine)
    until(stage, lambda: engine.version is not None)
    for _ in range(20):
        stage.turn()
    assert samples(world) == []
    world.command("drain", drain=False)
    finish(rollouts, stage, num_samples=2)


class TruthfulEngine(ScriptedEngine):
    """Checks that it is given the weights of the version it is told."""

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        assert int(np.asarray(state["step"])[0]) == version.step
        super().load(version, state)


def test_every_label_equals_the_truth(rollouts: Rollouts) -> None:
    """Case 33: 200 rollouts with swaps at random moments; a token is the step of the weights that made it."""
    world = begin(rollouts)
    world.prompts(*range(100), max_tokens=400)
    engine = TruthfulEngine(max_concurrent_sequences=24)
    stage = rollouts.make(engine)
    rng = random.Random(7)
    step = turns_left = 0

    def swaps() -> bool:
        nonlocal step, turns_left
        is_pending = engine.version != Version(lineage=1, step=step)
        turns_left -= 1
        engine.tokens_per_step = rng.randint(1, 5)
        if is_pending and turns_left <= 0:
            # Held, or all would be over before the version is staged: this engine's steps take no time.
            engine.tokens_per_step = 0
            time.sleep(0.001)
        elif not is_pending and step < 30 and rng.random() < 0.2:
            step, turns_left = step + 1, rng.randint(0, 30)
            world.publish(1, step, command=True)
        return len(samples(world)) >= 200 if rng.random() < 0.05 else False

    until(stage, swaps, limit_s=60, what="200 samples")
    found = finish(rollouts, stage, num_samples=200)
    assert len(found) == 200
    mixed = 0
    for sample in found:
        truth = unpack_i32(sample.completion_tokens).tolist()
        label = [run.version.step for run in sample.version_runs for _ in range(run.num_tokens)]
        assert label == truth
        mixed += len(sample.version_runs) > 1
    assert step >= 5
    assert mixed >= 20
    assert len(events_of(world.log, "swapped")) >= 5
