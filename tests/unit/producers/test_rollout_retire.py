"""A rollout producer that is retired: takes nothing more, finishes and acknowledges what it has, and is finished."""

from __future__ import annotations

import pytest

from pipeline.engines.scripted import ScriptedEngine
from schemas.errors import LogUnavailable
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout import begin, committed, samples
from tests.unit.producers.world import until
from topics.clock import Deadline, ManualClock

STOP_S = 5.0


def test_it_finishes_and_acknowledges_what_it_has_and_takes_no_more(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(*range(8), max_tokens=30)
    engine = ScriptedEngine(max_concurrent_sequences=4)
    stage = rollouts.make(engine)
    until(stage, lambda: engine.num_running == 4, what="a full engine")
    assert not stage.finished
    rollouts.context_of(stage).retire.request("test")
    assert not stage.finished, "two prompts are in flight"
    until(stage, lambda: stage.finished, what="the end of what is in flight")
    assert len({sample.group for sample in samples(world)}) == 2, "what it had, whole, and nothing more"
    assert len(samples(world)) == 4
    assert sum(committed(world).values()) == 2, "acknowledged before it counts as finished"
    stage.stop(deadline=Deadline.after(STOP_S))
    successor = rollouts.make(ScriptedEngine(), slot=1)
    until(successor, lambda: sum(committed(world).values()) == 8, what="the rest")
    assert len(samples(world)) == 16, "nothing was made twice"


def test_an_idle_one_is_finished_at_once(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    stage = rollouts.make(ScriptedEngine())
    until(stage, lambda: stage._started().weights.may_take_prompts, what="weights")
    stage.turn()
    rollouts.context_of(stage).retire.request("test")
    world.prompts(0)
    assert stage.finished
    stage.stop(deadline=Deadline.after(STOP_S))
    assert samples(world) == []


def test_one_that_has_not_started_is_finished(rollouts: Rollouts) -> None:
    stage = rollouts.make(ScriptedEngine(), start=False)
    assert not stage.finished
    rollouts.context_of(stage).retire.request("test")
    assert stage.finished


def test_what_is_not_acknowledged_yet_keeps_it(
    rollouts: Rollouts, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = begin(rollouts)
    world.prompts(0)
    stage = rollouts.make(ScriptedEngine())
    reader = stage._started().queue.reader

    def away(_: object) -> None:
        raise LogUnavailable("of the test")

    with monkeypatch.context() as patched:
        patched.setattr(reader, "commit", away)
        until(stage, lambda: len(samples(world)) == 2, what="samples")
        rollouts.context_of(stage).retire.request("test")
        for _ in range(5):
            stage.turn()
        assert not stage.finished
    clock.advance(2.0)
    until(stage, lambda: stage.finished, what="the acknowledgement")
    assert sum(committed(world).values()) == 1
