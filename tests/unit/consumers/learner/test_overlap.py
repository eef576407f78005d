"""The next step goes on while a version is encoded; ledger and manifest stay one transaction (design note 0004)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from consumers.learner import loop as learner_loop
from consumers.learner.loop import LearnerLoop
from consumers.learner.stage import LearnerStage
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.weights.series import EncodedVersion
from pipeline.weights.wire_state import WireState
from schemas.records import Version
from tests.integration.learner_world import World, alive, start, turn_until
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.memory import MemoryLog

BORN = Version(lineage=1, step=0)


class Held:
    """A learner of which versions are encoded only when the test lets them be; keeps the order of what happens."""

    def __init__(self, stage: LearnerStage) -> None:
        self.stage = stage
        self.gate = threading.Event()
        self.order: list[str] = []
        loop = stage._loop
        assert loop is not None
        self.loop: LearnerLoop = loop
        parts = loop._parts
        series, ledger, optimizer = parts.publisher._series, parts.ledger, parts.trainer.optimizer
        self._encode = series.encode
        series.encode = self.encode  # type: ignore[method-assign]
        self._note(ledger, "write_step", "transaction")
        self._note(optimizer, "step", "weights change")
        self._note(loop._oracle, "append", "batch")

    def encode(self, state: WireState, *, version: Version) -> EncodedVersion:
        assert self.gate.wait(20), "the test never let the version be encoded"
        return self._encode(state, version=version)

    def _note(self, owner: object, name: str, what: str) -> None:
        inner = cast("Callable[..., object]", getattr(owner, name))

        def noted(*arguments: object, **named: object) -> object:
            self.order.append(what)
            return inner(*arguments, **named)

        setattr(owner, name, noted)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path, model: Path) -> World:
    made = World(cast("KafkaLog", memory_log), tmp_path, model, max_steps=4, every_steps=100)
    for number in range(16):
        made.group(number, born=BORN)
    return made


@pytest.fixture
def held(world: World, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Version 1.0 is out, and step 1 is trained and pending."""
    monkeypatch.setattr(learner_loop, "SHORT_STAGING_S", 0.0)
    stage, _ = world.learner()
    start(stage)
    turn_until(stage, lambda: bool(world.manifests()), what="the first version")
    made = Held(stage)
    turn_until(stage, lambda: made.loop._pending is not None, what="a step that waits for its version")
    return made


def test_the_next_step_runs_up_to_the_change_of_weights(world: World, held: Held) -> None:
    between = held.loop._between
    seen: list[tuple[bool, int]] = []

    def watched(weights_change: bool) -> None:
        seen.append((weights_change, len(world.manifests())))
        if weights_change:
            held.gate.set()
        between(weights_change)

    held.loop._between = watched  # type: ignore[method-assign]
    held.stage.turn()
    assert seen[:2] == [(False, 1), (True, 1)], "forward and backward ran before the version was out"
    assert held.order[:5] == ["batch", "weights change", "batch", "transaction", "weights change"]
    assert [manifest.version.step for manifest in world.manifests()][:2] == [0, 1]


def test_nothing_of_a_pending_step_is_on_the_log(world: World, held: Held) -> None:
    assert [manifest.version.step for manifest in world.manifests()] == [0]
    assert world.ledger()[1] == []
    held.gate.set()
    turn_until(held.stage, lambda: held.stage.finished, what="the end", each=alive(world, num_groups=16, lineage=1))
    held.stage.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    assert (view.step, len(outcomes)) == (4, 16)
    assert [manifest.version.step for manifest in world.manifests()] == [0, 1, 2, 3, 4]


def test_a_death_with_a_step_pending_leaves_no_trace_of_it(world: World, held: Held) -> None:
    """Its groups are trained again, once, by the successor."""
    second, _ = world.learner()
    start(second)  # the first is left as it stands
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=16, lineage=2))
    second.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    assert {outcome.lineage for outcome in outcomes} == {2}
    assert sorted(outcome.group for outcome in outcomes) == list(range(16))
    assert (view.lineages.limits[1], view.step) == (0, 4)
    held.gate.set()
    held.loop._parts.publisher.close()


def test_a_stop_writes_the_pending_step_and_its_checkpoint(world: World, held: Held) -> None:
    held.gate.set()
    held.stage.stop(deadline=Deadline.after(10))
    assert [manifest.version.step for manifest in world.manifests()] == [0, 1]
    state = world.newest().state
    assert (state.lineage, state.step) == (1, 1)
    assert len(world.ledger()[1]) == 4
