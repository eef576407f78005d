"""The learner stage on a real broker, with the other stages' records written by hand: deadlines, drops, restarts.

A kill is a stage object that is left where it stands: nothing of it is closed or flushed, and its successor must fence
it. The records come from a scripted producer, so their number and order are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from consumers.learner import checkpoint
from consumers.learner.settings import LearnerSettings
from consumers.learner.stage import LearnerSetup, LearnerStage
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.history import LedgerView
from pipeline.settings import ModelSettings, RunSettings, WeightsSettings
from pipeline.stage import StageContext, make_context
from schemas.errors import Fenced, LogError
from schemas.records import (
    LedgerSealed,
    LineageStarted,
    Manifest,
    Outcome,
    PromptGroup,
    Record,
    Reward,
    Sample,
    StageEvent,
    Version,
)
from tests.unit.consumers.learner.material import prompt, reward, sample
from topics.catalog import EVENTS, LEDGER, PROMPTS, REWARDS, SAMPLES, WEIGHTS, Topic
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.log import ReaderHooks, ReaderSettings, Writer, WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SIZE = 8
HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
TOPIC_OF: dict[type, Topic] = {PromptGroup: PROMPTS, Sample: SAMPLES, Reward: REWARDS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@dataclass
class World:
    """One run: its log, its learners, and the hand that writes the other stages' records."""

    log: KafkaLog
    folder: Path
    model: Path
    max_steps: int = 4
    every_steps: int = 1
    seqs: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.writer: Writer = self.log.writer(WriterSettings(linger_ms=0.0))
        store = self.folder / self.log.run / "weights" / "learner"
        store.mkdir(parents=True)
        (store / "peer.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')

    def learner(self) -> tuple[LearnerStage, StageContext]:
        """A learner that has not started."""
        run = RunSettings(
            name=self.log.run,
            dir=self.folder,
            partitions=self.log.data_partitions,
            groups_per_step=4,
            group_size=SIZE,
            max_steps=self.max_steps,
            max_staleness=100,
            group_deadline_s=1.0,
            heartbeat_s=5.0,
        )
        context = make_context(self.log, run=run, stage="learner")
        settings = LearnerSettings(outcome_flush_s=0.1)
        settings = settings.model_copy(
            update={"checkpoint": settings.checkpoint.model_copy(update={"every_steps": self.every_steps})}
        )
        setup = LearnerSetup(
            settings=settings,
            model=ModelSettings(path=self.model),
            weights=WeightsSettings(),
            rewards={"match": 1.0},
            lease_s=1.0,
        )
        return LearnerStage(context, setup), context

    def write(self, *records: Record) -> None:
        for record in records:
            own = replace(record, run=self.log.run)
            self.writer.write(TOPIC_OF[type(record)], own)
        self.writer.flush(deadline=Deadline.after(10))

    def group(self, number: int, *, missing: int = 0, born: Version) -> None:
        """A group with `missing` members that never arrive."""
        self.write(prompt(number, size=SIZE))
        for member in range(SIZE - missing):
            self.write(sample(number, member, born=born), reward(number, member, value=float(member % 2)))

    def say(self, stage: str, phase: str, **gauges: float) -> None:
        """A heartbeat of another stage."""
        event = StageEvent(
            run=self.log.run,
            stage=stage,
            instance=f"{stage}-by-hand",
            kind="heartbeat",
            name="heartbeat",
            seq=self.seqs[stage],
            gauges=gauges,
            details={"phase": phase},
            monotonic_s=0.0,
            unix_ms=0,
        )
        self.seqs[stage] += 1
        self.writer.write(EVENTS, event)
        self.writer.flush(deadline=Deadline.after(10))

    def records(self, topic: Topic) -> list[tuple[int, Record]]:
        """(partition, record) of a topic as it is now."""
        reader = self.log.reader(ReaderSettings(topics=(topic,)), hooks=HOOKS)
        found: list[tuple[int, Record]] = []
        ends = reader.end_positions()
        deadline = Deadline.after(20)
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            deadline.check(f"{topic.name} to its end")
            polled = reader.poll(1000, deadline=Deadline.after(0.2))
            found += [(each.partition, each.record) for each in polled if each.record is not None]
        reader.close()
        return found

    def ledger(self) -> tuple[LedgerView, list[Outcome]]:
        """The ledger folded, and its surviving outcomes."""
        view, outcomes = LedgerView(self.log.data_partitions), []
        for partition, record in self.records(LEDGER):
            assert isinstance(record, Outcome | LineageStarted | LedgerSealed)
            view.add(partition, record)
            if isinstance(record, Outcome):
                outcomes.append(record)
        return view, [each for each in outcomes if view.lineages.survives(each.lineage, each.step)]

    def manifests(self) -> list[Manifest]:
        return [record for _, record in self.records(WEIGHTS) if isinstance(record, Manifest)]

    def newest(self) -> checkpoint.Snapshot:
        found = checkpoint.newest_valid(self.folder / self.log.run / "checkpoints")
        assert found is not None
        return found.snapshot


@pytest.fixture
def world(kafka_log: KafkaLog, tmp_path: Path, model: Path) -> World:
    return World(kafka_log, tmp_path, model)


def start(stage: LearnerStage) -> None:
    stage.start(deadline=Deadline.after(30))


def turn_until(
    stage: LearnerStage, condition: Callable[[], bool], *, what: str, each: Callable[[], None] = lambda: None
) -> None:
    deadline = Deadline.after(40)
    while not condition():
        deadline.check(what)
        each()
        stage.turn()


def step_of(context: StageContext) -> float:
    return context.metrics.snapshot().get("step", 0.0)


def alive(world: World, *, num_groups: int, lineage: int) -> Callable[[], None]:
    """What the other stages say meanwhile, every half second."""
    clock, said_s = SystemClock(), [0.0]

    def say() -> None:
        if clock.monotonic() - said_s[0] > 0.5:
            said_s[0] = clock.monotonic()
            world.say("rollout", "generating")
            world.say("prompts", "finished", groups_admitted=num_groups, version_lineage=lineage)

    return say


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


def test_a_late_member_is_counted_and_not_trained(world: World) -> None:
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
    for number in range(20):
        world.group(number, born=Version(lineage=1, step=0))
    turn_until(first, lambda: step_of(context) >= 3, what="step 3")
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
