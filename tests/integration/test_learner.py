"""The learner stage on a real broker, with the other stages' records written by hand: deadlines, drops, restarts.

A kill is a stage object that is left where it stands: nothing of it is closed or flushed, and its successor must fence
it. The records come from a scripted producer, so their number and order are exact.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from consumers.learner import checkpoint
from pipeline.engines.tiny import TinyShape, make_tiny_model
from schemas.errors import CheckpointError, Fenced, LogError
from schemas.records import (
    Version,
)
from tests.integration.learner_world import SIZE, World, alive, start, step_of, turn_until
from tests.unit.consumers.learner.material import reward, sample
from topics.clock import Deadline
from topics.kafka import KafkaLog

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.fixture
def world(kafka_log: KafkaLog, tmp_path: Path, model: Path) -> World:
    return World(kafka_log, tmp_path, model)


@pytest.mark.parametrize("killed_after", [None, 2])
def test_groups_that_never_complete_are_dropped_by_their_deadline_and_the_rest_is_trained(
    world: World, killed_after: int | None
) -> None:
    """Case 28: of 20 groups 3 lack their eighth member; the end is the same with a kill half-way."""
    world.max_steps = 100
    born = Version(lineage=1, step=0)
    lineage = 1
    stage, context = world.learner()
    start(stage)
    lacking = {3, 8, 17}
    for number in range(20):
        world.group(number, missing=int(number in lacking), born=born)
    if killed_after is not None:
        goal = killed_after
        turn_until(stage, lambda: step_of(context) >= goal, what=f"step {goal}")
        stage, context = world.learner()  # the first is left as it stands
        start(stage)
        lineage = 2
    turn_until(stage, lambda: stage.finished, what="the end", each=alive(world, num_groups=20, lineage=lineage))
    stage.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    assert view.sealed is not None
    assert view.sealed.num_groups == 20
    fates = {each.group: (each.result, each.reason) for each in outcomes}
    assert len(outcomes) == len(fates) == 20
    assert {number for number, fate in fates.items() if fate == ("dropped", "incomplete: 7/8")} == lacking
    assert Counter(result for result, _ in fates.values()) == {"trained": 17, "dropped": 3}
    assert view.step == 5, "four whole batches, and a smaller one when nothing more could come"
    kept = [(each.step, each.group) for each in outcomes for member in each.members if member.logprob_gap is not None]
    assert Counter(step for step, _ in kept) == dict.fromkeys(range(1, 6), 1), "of each step the furthest sample"
    assert {fates[number][0] for _, number in kept} == {"trained"}


def test_a_late_member_is_counted_and_not_trained(world: World) -> None:
    """Case 28."""
    world.max_steps = 1
    stage, context = world.learner()
    start(stage)
    born = Version(lineage=1, step=0)
    world.group(0, missing=1, born=born)
    say = alive(world, num_groups=5, lineage=1)
    turn_until(stage, lambda: bool(world.ledger()[1]), what="the drop", each=say)
    assert [each.reason for each in world.ledger()[1]] == ["incomplete: 7/8"]
    world.write(sample(0, SIZE - 1, born=born), reward(0, SIZE - 1))
    for number in range(1, 5):
        world.group(number, born=born)
    turn_until(stage, lambda: stage.finished, what="the end", each=say)
    counts = context.metrics.snapshot()
    assert sum(number for name, number in counts.items() if "late" in name or "duplicate" in name) >= 2, counts
    stage.stop(deadline=Deadline.after(10))
    _, outcomes = world.ledger()
    assert Counter(each.result for each in outcomes) == {"trained": 4, "dropped": 1}


def test_what_is_restored_is_what_was_saved_and_the_abandoned_branch_is_void(world: World) -> None:
    world.every_steps, world.max_steps = 2, 5
    first, context = world.learner()
    start(first)
    for number in range(12):  # of three steps: with more, step 4 may be out, and saved, in the same turn as step 3
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(first, lambda: step_of(context) >= 3, what="step 3")
    for number in range(12, 20):
        world.group(number, born=Version(lineage=1, step=0))
    saved = world.newest()
    assert (saved.state.lineage, saved.state.step) == (1, 2)
    before, _ = world.ledger()
    assert before.num_closed == 12

    second, context = world.learner()
    start(second)
    view, outcomes = world.ledger()
    assert (view.lineages.current, view.lineages.limits[1], view.num_closed, view.step) == (2, 2, 8, 2)
    turn_until(second, lambda: bool([m for m in world.manifests() if m.version.lineage == 2]), what="its anchor")
    again = world.newest()
    assert (again.state.lineage, again.state.step) == (2, 2)
    for name in ("model", "optimizer"):
        one, other = getattr(saved, name), getattr(again, name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    assert again.state.closed == saved.state.closed
    assert again.state.first_anchor == saved.state.first_anchor
    by_version = {each.version: each.state_digest for each in world.manifests()}
    assert by_version[Version(lineage=2, step=2)] == by_version[Version(lineage=1, step=2)]
    assert by_version[Version(lineage=1, step=3)] != by_version[Version(lineage=1, step=2)]

    with pytest.raises(Fenced):
        turn_until(first, lambda: False, what="the first to be fenced")
    first.stop(deadline=Deadline.after(10))
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=20, lineage=2))
    second.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    assert len(outcomes) == len({each.group for each in outcomes}) == 20
    assert {each.result for each in outcomes} == {"trained"}


def test_a_death_between_transaction_and_checkpoint_repeats_the_step(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, context = world.learner()
    start(stage)
    for number in range(16):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(stage, lambda: step_of(context) >= 1, what="step 1")

    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", kill)
        with pytest.raises(Killed):
            turn_until(stage, lambda: False, what="the kill")
    assert world.ledger()[0].step == 2
    second, context = world.learner()
    start(second)
    assert world.ledger()[0].step == 1
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=16, lineage=2))
    second.stop(deadline=Deadline.after(10))
    _, outcomes = world.ledger()
    assert Counter(each.result for each in outcomes) == {"trained": 16}
    assert len({each.group for each in outcomes}) == 16
    contents: dict[Version, str] = {}
    for manifest in world.manifests():
        assert contents.setdefault(manifest.version, manifest.state_digest) == manifest.state_digest


def test_a_death_before_the_first_checkpoint_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LogError("of the test")

    stage, _ = world.learner()
    start(stage)
    world.group(0, born=Version(lineage=1, step=0))
    with monkeypatch.context() as patch:
        patch.setattr("consumers.learner.ledger.Ledger.write_step", fail)
        with pytest.raises(LogError, match="of the test"):
            turn_until(stage, lambda: False, what="the failure")
    stage.stop(deadline=Deadline.after(10))  # after an error nothing is saved
    assert not (world.folder / world.log.run / "checkpoints").exists()
    second, context = world.learner()
    start(second)
    view, _ = world.ledger()
    assert (view.lineages.current, view.lineages.limits) == (2, {2: 2**31 - 1})
    for number in range(1, 5):
        world.group(number, born=Version(lineage=2, step=0))
    turn_until(second, lambda: step_of(context) >= 1, what="a step")
    second.stop(deadline=Deadline.after(10))
    assert world.newest().state.lineage == 2


def test_a_stop_saves_steps_that_had_no_checkpoint_yet_with_drops_of_afterwards_left_out(world: World) -> None:
    """A drop that was written after the step is void for the next lineage, which must decide it anew."""
    world.every_steps, world.max_steps = 100, 3
    stage, context = world.learner()
    start(stage)
    for number in range(4):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(stage, lambda: step_of(context) >= 1, what="step 1")
    world.group(4, missing=1, born=Version(lineage=1, step=1))
    say = alive(world, num_groups=99, lineage=0)
    turn_until(stage, lambda: world.ledger()[0].num_closed == 5, what="the drop", each=say)
    stage.stop(deadline=Deadline.after(10))
    assert (world.newest().state.step, world.newest().state.closed["watermark"]) == (1, 4)
    second, _ = world.learner()
    start(second)
    assert world.ledger()[0].num_closed == 4
    turn_until(second, lambda: world.ledger()[0].num_closed == 5, what="the drop, again", each=say)
    second.stop(deadline=Deadline.after(10))


def test_more_steps_may_be_asked_for_afterwards(world: World) -> None:
    world.max_steps = 1
    stage, _ = world.learner()
    start(stage)
    for number in range(6):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(stage, lambda: stage.finished, what="the end", each=alive(world, num_groups=6, lineage=1))
    stage.stop(deadline=Deadline.after(10))
    assert Counter(each.reason for each in world.ledger()[1])["run_ended"] == 2
    world.max_steps = 2
    second, _ = world.learner()
    start(second)
    assert world.ledger()[0].num_closed == 4, "what ended with the run is open again"
    for number in (6, 7):
        world.group(number, born=Version(lineage=1, step=1))
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=8, lineage=2))
    second.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    assert (view.step, Counter(each.result for each in outcomes)) == (2, {"trained": 8})


def test_what_a_phase_left_open_is_not_trained_in_the_next_one(world: World) -> None:
    world.max_steps = 1
    stage, _ = world.learner()
    start(stage)
    for number in range(6):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(stage, lambda: stage.finished, what="the end", each=alive(world, num_groups=6, lineage=1))
    stage.stop(deadline=Deadline.after(10))
    world.max_steps, world.first_group = 2, 6
    second, _ = world.learner()
    start(second)
    for number in range(6, 10):
        world.group(number, born=Version(lineage=1, step=1))
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=10, lineage=2))
    second.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    trained = {each.group for each in outcomes if each.result == "trained"}
    left_open = {each.group for each in outcomes if each.reason == "run_ended"}  # two of six: partitions have no order
    assert (view.step, len(left_open), left_open < set(range(6))) == (2, 2, True)
    assert trained == set(range(10)) - left_open


def test_a_checkpoint_of_prompts_that_are_gone_is_refused(world: World) -> None:
    world.max_steps = 1
    stage, context = world.learner()
    start(stage)
    for number in range(4):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(stage, lambda: step_of(context) >= 1, what="step 1")
    stage.stop(deadline=Deadline.after(10))
    admin = world.log.admin()
    admin.delete_topics()
    deadline = Deadline.after(20)
    while admin.topic_ids():
        deadline.check("the topics to go")
    admin.ensure_topics()
    second, _ = world.learner()
    with pytest.raises(CheckpointError, match="prompts that are gone"):
        start(second)
    second.stop(deadline=Deadline.after(10))


def test_a_checkpoint_written_after_a_successor_began_is_void_without_redis(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first learner stands still between a step's transaction and its checkpoint; the second one begins a lineage
    and dies before it has a checkpoint of its own; then the first goes on."""
    world.every_steps, world.max_steps = 2, 100
    first, context = world.learner()
    start(first)
    for number in range(40):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(first, lambda: step_of(context) >= 2, what="step 2")
    save = checkpoint.save

    def late(folder: Path, snapshot: checkpoint.Snapshot) -> Path:
        second, _ = world.learner()
        start(second)  # and is left as it stands
        return save(folder, snapshot)

    monkeypatch.setattr(checkpoint, "save", late)
    with pytest.raises(Fenced):
        turn_until(first, lambda: False, what="the first to be fenced")
    monkeypatch.undo()
    assert (world.newest().state.lineage, world.newest().state.step) == (1, 4), "the file is there"
    third, _ = world.learner()
    start(third)
    view, _ = world.ledger()
    assert (view.lineages.current, view.lineages.limits[1], view.step) == (3, 2, 2), "and nobody restored from it"
    third.stop(deadline=Deadline.after(10))
    first.stop(deadline=Deadline.after(10))
