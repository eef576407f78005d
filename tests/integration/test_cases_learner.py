"""The learner on a real broker when the log changes under it, and when it is stopped in any phase."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.events import Events
from pipeline.exit_codes import ExitCode
from pipeline.stage import StageContext, run_stage
from schemas.errors import TopicMismatch
from schemas.records import StageEvent, Version
from tests.contract.logs import KafkaBackend
from tests.integration.learner_crew import crew
from tests.integration.learner_world import SIZE, World, alive, start, step_of, turn_until
from tests.unit.consumers.learner.material import prompt, reward, sample
from topics.catalog import EVENTS, PROMPTS, REWARDS, SAMPLES
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]
BORN = Version(lineage=1, step=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.fixture
def world(kafka_log: KafkaLog, tmp_path: Path, model: Path) -> World:
    return World(kafka_log, tmp_path, model)


def test_samples_that_retention_took_from_the_learner_are_counted_and_the_rest_is_trained(
    world: World, services: ServicesInfo
) -> None:
    """Case 8 for the learner: half of one group's samples are gone when it comes back."""
    world.max_steps = 100
    first, context = world.learner()
    start(first)
    for number in range(4):
        world.group(number, born=BORN)
    turn_until(first, lambda: step_of(context) >= 1, what="step 1")
    for number in range(4, 12):  # the first learner is left as it stands, killed before it read these
        world.group(number, born=BORN)
    before = SIZE + SIZE // 2  # of partition 0: group 0, and half of group 4
    KafkaBackend(world.log, bootstrap=services.kafka_bootstrap).delete_before({("samples", 0): before})

    second, _ = world.learner()
    start(second)
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=12, lineage=2))
    second.stop(deadline=Deadline.after(10))
    (lost,) = (event for event in events(world) if event.name == "offsets_lost")
    assert (lost.details["topic"], lost.details["partition"]) == ("samples", "0")
    assert (lost.gauges["num_lost"], lost.gauges["resumed_at"]) == (SIZE // 2, before)
    _, outcomes = world.ledger()
    fates = {each.group: (each.result, each.reason) for each in outcomes}
    assert len(outcomes) == len(fates) == 12
    assert {number for number, fate in fates.items() if fate[0] != "trained"} == {4}
    assert fates[4] == ("dropped", "incomplete: 4/8")


def events(world: World) -> list[StageEvent]:
    return [record for _, record in world.records(EVENTS) if isinstance(record, StageEvent)]


def test_partitions_added_in_mid_stream_split_no_group(world: World, services: ServicesInfo) -> None:
    """Case 11: two learners at work while every topic gets twice as many partitions."""
    world.max_steps = 100
    with crew(world, 2) as made:
        for number in range(10):
            world.write(prompt(number, size=SIZE))
            members(world, number, range(4))
        for topic in (PROMPTS, SAMPLES, REWARDS):
            KafkaBackend(world.log, bootstrap=services.kafka_bootstrap).add_partitions(topic, count=8)
        for number in range(10):
            members(world, number, range(4, SIZE))
        say = alive(world, num_groups=10, lineage=1)
        turn_until(made.stage, lambda: made.stage.finished, what="the end", each=say)
        made.stop()
    _, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(10))
    assert Counter(each.result for each in outcomes) == {"trained": 10}
    assert {len([one for one in each.members if one.result == "trained"]) for each in outcomes} == {SIZE}
    with pytest.raises(TopicMismatch, match="partitions = 8, this run needs 4"):
        world.log.admin().ensure_topics()  # what every stage does at its start


def members(world: World, number: int, numbers: range) -> None:
    for member in numbers:
        world.write(sample(number, member, born=BORN), reward(number, member, value=float(member % 2)))


class SignalIn(Events):
    """Events that send this process a SIGTERM the first time a phase begins."""

    armed_for = ""

    def enter(self, name: str) -> None:
        super().enter(name)
        if name == self.armed_for:
            self.armed_for = ""
            os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class StoppingWorld(World):
    """A world whose learners are signalled in a phase of their own."""

    phase: str = ""

    def _context(self, rank: int) -> StageContext:
        context = super()._context(rank)
        told = SignalIn(
            partial(self.log.writer, WriterSettings(linger_ms=1.0)),
            run=self.log.run,
            stage=context.stage,
            instance=context.instance,
            clock=context.clock,
            metrics=context.metrics,
        )
        told.armed_for = self.phase
        return replace(context, events=told)


@contextmanager
def own_signals() -> Iterator[None]:
    """The run loop installs its handlers; ours come back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_sigterm_in_any_phase_ends_in_order_and_nothing_is_trained_twice_or_lost(
    kafka_log: KafkaLog, tmp_path: Path, model: Path
) -> None:
    """Case 45: start, publish, waiting, step, staging and saving; each time the next learner goes on."""
    phases = ["starting", "publishing", "waiting_for_data", "forward_backward", "staging_weights", "checkpointing"]
    world = StoppingWorld(kafka_log, tmp_path, model, max_steps=100, every_steps=2)
    for number in range(24):
        world.group(number, born=BORN)
    with own_signals():
        for phase in phases:
            world.phase = phase
            stage, context = world.learner()
            assert run_stage(stage, context) == ExitCode.OK, phase
            assert context.stop.reason == "SIGTERM", phase
    world.phase = ""
    last, _ = world.learner()
    start(last)
    say = alive(world, num_groups=24, lineage=world.ledger()[0].lineages.current)
    turn_until(last, lambda: last.finished, what="the end", each=say)
    last.stop(deadline=Deadline.after(10))
    view, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(24)), "an id was lost, or has two outcomes"
    assert {each.result for each in outcomes} == {"trained"}
    stopped = [event for event in events(world) if event.name == "stopped"]
    assert [event.details["reason"] for event in stopped] == ["SIGTERM"] * len(phases)
    published = Counter(manifest.version for manifest in world.manifests())
    assert all(number == 1 for number in published.values()), "a version was published twice"
    assert view.sealed is not None
