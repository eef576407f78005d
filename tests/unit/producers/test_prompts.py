"""The prompt producer: numbering through crashes, credit, lineages, commands, bad prompts, the end of a source."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.sources import SourceSettings
from producers.prompts.admission import RateLimit
from producers.prompts.settings import PromptsSettings
from producers.prompts.stage import PromptsStage, seed_of
from schemas.errors import Fenced, SettingsError, TopicMismatch
from schemas.records import PromptGroup
from tests.unit.producers.crash import CrashingLog, Fuse, Killed
from tests.unit.producers.world import World, events_of, started, until
from topics.catalog import PROMPTS
from topics.clock import ManualClock
from topics.memory import MemoryLog

RUN = {"partitions": 4, "groups_per_step": 4, "group_size": 2, "max_staleness": 2, "max_steps": 100}  # credit 12


def write_rows(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int) -> list[object]:
    return [{"question": f"q{index}", "answer": str(index)} for index in range(count)]


def prompts_settings(path: Path, *, epochs: int | None = 1, batch_groups: int = 64) -> PromptsSettings:
    source = SourceSettings(files=(path,), epochs=epochs, shuffle=False)
    return PromptsSettings(source=source, batch_groups=batch_groups)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path, clock: ManualClock) -> World:
    return World(log=memory_log, folder=tmp_path, clock=clock, fields=RUN)


@pytest.fixture
def make(world: World, tmp_path: Path) -> Callable[..., PromptsStage]:
    def build(count: int = 1000, **options: int) -> PromptsStage:
        path = write_rows(tmp_path / "prompts.jsonl", rows(count))
        stage = PromptsStage(world.context("prompts"), prompts_settings(path, **options))
        started(stage)
        return stage

    return build


def groups(world: World) -> list[PromptGroup]:
    found = [record for record in world.read(PROMPTS) if isinstance(record, PromptGroup)]
    return sorted(found, key=lambda record: record.group)


def turns(stage: PromptsStage, count: int = 5) -> None:
    for _ in range(count):
        stage.turn()


def phase_of(stage: PromptsStage) -> str:
    return stage._decide()[0]


def test_nothing_is_admitted_before_weights(world: World, make: Callable[..., PromptsStage]) -> None:
    stage = make()
    turns(stage)
    world.lineage(1)
    turns(stage)
    assert groups(world) == []
    assert phase_of(stage) == "waiting_for_weights"
    world.publish(1, 0)
    turns(stage)
    assert len(groups(world)) == world.run.credit_groups


def test_records(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    turns(make())
    first = groups(world)[0]
    assert (first.text, first.answer, first.group_size, first.source_index, first.epoch) == ("q0", "0", 2, 0, 0)
    assert first.seed == seed_of(world.run.seed, 0)
    assert len({record.seed for record in groups(world)}) == 12


def test_credit_follows_outcomes(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    stage = make()
    turns(stage)
    assert phase_of(stage) == "waiting_for_credit"
    world.close(0, 1, 2, 3)
    world.close(5, result="dropped")
    turns(stage)
    assert stage.next_group == 12 + 5


def test_no_more_than_the_run_still_needs(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    stage = make()
    turns(stage)
    world.close(0, 1, 2, 3, step=98)  # two steps of four groups are left, eight groups are open
    turns(stage)
    assert stage.next_group == 12
    world.close(4, 5, step=99, result="dropped")  # two of them will not be trained
    turns(stage)
    assert stage.next_group == 14
    world.close(*range(6, 10), step=99)
    world.close(*range(10, 14), step=100)
    turns(stage)
    assert stage.next_group == 14


def test_lineage_closes_and_reopens_admission(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    stage = make()
    turns(stage)
    world.close(0, 1, 2, 3, step=1)
    turns(stage)
    assert stage.next_group == 16
    world.lineage(2, parent=1, branch_step=0)  # the outcomes of step 1 are void: 16 groups are open again
    turns(stage)
    assert phase_of(stage) == "waiting_for_weights"
    world.publish(2, 0)
    turns(stage)
    assert stage.next_group == 16
    assert phase_of(stage) == "waiting_for_credit"
    world.close(*range(8), lineage=2, step=2)
    turns(stage)
    assert stage.next_group == 20


def test_commands_are_judged_by_epoch(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    world.command("rate", target="prompts", epoch=2, rate=0.0)
    stage = make()
    turns(stage)
    assert stage.next_group == 0
    world.command("rate", target="prompts", epoch=1, rate=None)  # of a scheduler that was replaced
    turns(stage)
    assert stage.next_group == 0
    world.command("heartbeat", target="all", epoch=3)
    world.command("rate", target="prompts", epoch=2, rate=None)
    turns(stage)
    assert stage.next_group == 0
    world.command("rate", target="rollout", epoch=3, rate=None)  # not for us
    turns(stage)
    assert stage.next_group == 0
    world.command("rate", target="prompts", epoch=3, rate=None)
    turns(stage)
    assert stage.next_group == 12


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
def test_a_rate_that_is_no_number_changes_nothing(clock: ManualClock, rate: float) -> None:
    limit = RateLimit(clock)
    limit.set(2.0)
    limit.set(rate)
    clock.advance(1.0)
    assert limit.allowed() == 2


@pytest.mark.parametrize("temperature", [1e-30, 1e-5])
def test_a_temperature_that_training_cannot_divide_by_is_refused(temperature: float) -> None:
    with pytest.raises(ValidationError, match="finite numbers from"):
        PromptsSettings(source=SourceSettings(files=(Path("a.jsonl"),)), temperature=temperature)


def test_rate_in_groups_per_second(world: World, make: Callable[..., PromptsStage], clock: ManualClock) -> None:
    world.lineage(1)
    world.publish(1, 0)
    world.command("rate", target="prompts", rate=2.0)
    stage = make()
    begin_s = clock.now_s
    until(stage, lambda: stage.next_group >= 7)
    assert 3.0 <= clock.now_s - begin_s <= 5.0


def test_drain_admits_nothing(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    world.command("drain", target="all", drain=True)
    stage = make()
    turns(stage)
    assert stage.next_group == 0
    world.command("drain", target="all", drain=False)
    turns(stage)
    assert stage.next_group == 12


def test_end_of_the_source_is_a_phase(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    stage = make(count=5, epochs=2)
    turns(stage)
    assert stage.next_group == 10
    assert phase_of(stage) == "finished"
    assert stage.finished is False
    assert stage._context.metrics.snapshot()["groups_admitted"] == 10


def test_bad_prompts_take_no_number(world: World, tmp_path: Path) -> None:
    world.lineage(1)
    world.publish(1, 0)
    path = write_rows(tmp_path / "mixed.jsonl", [{"question": " "}, {"question": "a"}, {"token_ids": []}, [], *rows(1)])
    stage = PromptsStage(world.context("prompts"), prompts_settings(path))
    started(stage)
    turns(stage)
    assert [(record.group, record.text) for record in groups(world)] == [(0, "a"), (1, "q0")]
    counts = stage._context.metrics.snapshot()
    assert counts["prompts_skipped{reason=prompt_invalid}"] == 2
    assert counts["prompts_skipped{reason=malformed_line}"] == 1
    lines = [details.get("line") for details in events_of(world.log, "prompt_skipped")]
    assert "4" in lines


def test_source_without_a_usable_prompt_is_an_error(world: World, tmp_path: Path) -> None:
    world.lineage(1)
    world.publish(1, 0)
    path = write_rows(tmp_path / "empty.jsonl", [{"question": " "}] * 3)
    stage = PromptsStage(world.context("prompts"), prompts_settings(path, epochs=None))
    started(stage)
    with pytest.raises(SettingsError, match="gave no prompt"):
        turns(stage)


def test_a_successor_fences_its_predecessor(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    first = make()
    turns(first)
    second = make()
    world.close(0, 1, 2, 3)
    with pytest.raises(Fenced):
        turns(first)
    turns(second)
    assert [record.group for record in groups(world)] == list(range(16))


def test_holes_in_the_numbering_are_refused(world: World, make: Callable[..., PromptsStage]) -> None:
    world.prompts(0, 1, 3)
    with pytest.raises(TopicMismatch, match="partition 2"):
        make()


def test_a_topic_whose_records_were_all_deleted_is_refused(world: World, make: Callable[..., PromptsStage]) -> None:
    """Numbers would begin at 0 again, and the learner would take the new groups for closed ones."""
    world.prompts(*range(8))
    assert isinstance(world.log, MemoryLog)
    world.log.delete_records({("prompts", partition): 2 for partition in range(4)})
    with pytest.raises(TopicMismatch, match=r"all records of prompts were deleted \(partitions 0, 1, 2, 3\)"):
        make()


@pytest.mark.parametrize("window", [1, 3, 4096])
def test_a_source_that_comes_back_goes_on_where_it_was(
    world: World, make: Callable[..., PromptsStage], monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """As in a run in phases."""
    monkeypatch.setattr("producers.prompts.recovery._WINDOW", window)
    world.lineage(1)
    world.publish(1, 0)
    turns(make(count=1000))  # items 0 to 11
    world.close(*range(10))
    turns(make(count=999))  # ten of another source
    world.close(*range(10, 20))
    turns(make(count=1000))
    assert [record.source_index for record in groups(world)][22:] == list(range(12, 22))
    world.close(20, 21)
    turns(make(count=1000))
    assert [record.source_index for record in groups(world)][22:] == list(range(12, 24)), "and on"
    assert len(events_of(world.log, "source_changed")) == 2


def test_another_source_begins_at_its_start(world: World, make: Callable[..., PromptsStage]) -> None:
    world.lineage(1)
    world.publish(1, 0)
    turns(make(count=1000))
    world.close(0, 1, 2, 3)
    turns(make(count=999))
    assert [(record.group, record.source_index) for record in groups(world)][12:] == [
        (12, 0),
        (13, 1),
        (14, 2),
        (15, 3),
    ]
    assert len(events_of(world.log, "source_changed")) == 1


@settings(max_examples=60, deadline=None)
@given(
    fuses=st.lists(st.integers(0, 30), max_size=6),
    bad=st.sets(st.integers(0, 29), max_size=8),
    batch_groups=st.integers(1, 7),
    partitions=st.integers(1, 5),
)
def test_numbering_and_credit_survive_a_kill_at_any_moment(
    tmp_path_factory: pytest.TempPathFactory, fuses: list[int], bad: set[int], batch_groups: int, partitions: int
) -> None:
    folder = tmp_path_factory.mktemp("crash")
    log = MemoryLog(run="crash", data_partitions=partitions)
    world = World(log=log, folder=folder, clock=ManualClock(), fields={**RUN, "partitions": partitions})
    world.lineage(1)
    world.publish(1, 0)
    path = write_rows(folder / "rows.jsonl", [{"question": " "} if row in bad else rows(30)[row] for row in range(30)])
    closed = 0

    def run_one(own: CrashingLog | MemoryLog) -> None:
        nonlocal closed
        stage = PromptsStage(world.context("prompts", log=own), prompts_settings(path, batch_groups=batch_groups))
        started(stage)
        for _ in range(40):
            stage.turn()
            num_written = len(groups(world))
            assert num_written - closed <= world.run.credit_groups
            if num_written - closed >= 4:
                world.close(*range(closed, closed + 4))
                closed += 4

    for fuse in fuses:
        try:
            run_one(CrashingLog(log, Fuse(fuse)))
        except Killed:
            continue
    run_one(log)
    found = groups(world)
    assert [record.group for record in found] == list(range(30 - len(bad)))
    assert [record.source_index for record in found] == [row for row in range(30) if row not in bad]
