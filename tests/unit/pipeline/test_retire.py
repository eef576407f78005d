"""SIGUSR2: a stage that knows how goes on until it is through, any other stops in order; both end with 0."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.exit_codes import ExitCode
from pipeline.settings import RunSettings
from pipeline.stage import Stage, StageContext, make_context, run_stage
from tests.unit.producers.world import events_of
from topics.clock import Deadline
from topics.memory import MemoryLog


@dataclass
class Ordinary:
    """Works for ever; is retired by a signal in its second turn."""

    context: StageContext
    work: int = 3
    did: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return False

    def start(self, *, deadline: Deadline) -> None:
        self.did.append("start")

    def turn(self) -> None:
        self.did.append("turn")
        if self.did.count("turn") == 2:
            os.kill(os.getpid(), signal.SIGUSR2)

    def stop(self, *, deadline: Deadline) -> None:
        self.did.append("stop")


@dataclass
class Knowing(Ordinary):
    """Needs two more turns once it is retired."""

    retires: bool = True

    @property
    def finished(self) -> bool:
        return self.context.retire.requested and self.did.count("turn") == 4


@pytest.fixture
def context(memory_log: MemoryLog, tmp_path: Path) -> Iterator[StageContext]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield make_context(memory_log, run=RunSettings(name=memory_log.run, dir=tmp_path), stage="rollout")
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def reasons(stage: Stage, context: StageContext) -> list[str]:
    """Runs the stage to its end; why it said it stopped."""
    assert run_stage(stage, context) is ExitCode.OK
    return [details["reason"] for details in events_of(context.log, "stopped")]


def test_a_stage_that_knows_how_goes_on_until_it_is_through(context: StageContext) -> None:
    stage = Knowing(context)
    assert reasons(stage, context) == ["retired"]
    assert stage.did == ["start", "turn", "turn", "turn", "turn", "stop"]
    assert not context.stop.requested


@pytest.mark.parametrize("knows", [False, None])
def test_a_stage_that_does_not_know_how_stops_in_order(context: StageContext, knows: bool | None) -> None:
    stage = Ordinary(context) if knows is None else Knowing(context, retires=knows)
    assert reasons(stage, context) == ["SIGUSR2"]
    assert stage.did == ["start", "turn", "turn", "stop"]


def test_one_that_is_retired_before_it_began_begins_nothing(context: StageContext) -> None:
    context.retire.request("test")
    stage = Knowing(context)
    assert reasons(stage, context) == ["retired"]
    assert stage.did == ["stop"]
