"""The prompt producer and the publish lag that the scheduler measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipeline.settings import RunSettings
from producers.prompts.admission import lag_of
from producers.prompts.stage import PromptsStage
from schemas.records import Command
from tests.unit.producers.test_prompts import RUN, prompts_settings, rows, turns, write_rows
from tests.unit.producers.world import World, started
from topics.clock import ManualClock
from topics.memory import MemoryLog


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path, clock: ManualClock) -> World:
    return World(log=memory_log, folder=tmp_path, clock=clock, fields=RUN)


@pytest.fixture
def stage(world: World, tmp_path: Path) -> PromptsStage:
    """Not started."""
    path = write_rows(tmp_path / "prompts.jsonl", rows(1000))
    return PromptsStage(world.context("prompts"), prompts_settings(path))


def test_a_measured_publish_lag_lowers_the_credit_and_stands_without_a_scheduler(
    world: World, stage: PromptsStage
) -> None:
    world.lineage(1)
    world.publish(1, 0)
    world.command("credit", target="prompts", rate=1.0)
    started(stage)
    turns(stage)
    assert stage.next_group == 8, "(2 + 1 - 1) x 4"
    world.command("credit", target="prompts", epoch=2, rate=9.0)
    turns(stage)
    assert stage.next_group == 8, "what is open stays open"
    world.close(*range(5))
    turns(stage)
    assert stage.next_group == 9, "one batch may be open in any case"
    world.command("credit", target="prompts", epoch=1, rate=0.0)  # of a scheduler that was replaced
    turns(stage)
    assert stage.next_group == 9
    assert (lag_of(None), stage._progress().lag_versions) == (0, 9)
    world.command("credit", target="prompts", epoch=2, rate=0.0)
    turns(stage)
    assert stage.next_group == 17


@pytest.mark.parametrize("rate", [None, math.nan, math.inf, -1.0])
def test_a_publish_lag_that_is_none_counts_as_none(rate: float | None) -> None:
    command = Command(run="r", target="prompts", kind="credit", epoch=1, seq=0, reason="", rate=rate, issued_unix_ms=0)
    assert lag_of(command) == 0


def test_no_command_raises_the_credit_above_that_of_the_run_file() -> None:
    run = RunSettings(name="r", max_staleness=4, publish_lag_versions=2, groups_per_step=10)
    assert [run.credit_at(lag) for lag in (0, 1, 2, 3, 4, 99)] == [30, 30, 30, 20, 10, 10]
