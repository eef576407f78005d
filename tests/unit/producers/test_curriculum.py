"""Mixed prompt sources: shares, a curriculum by step and by measured reward, and the same items after a restart."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.sources import MixSource, SourceSettings, open_source
from producers.prompts.settings import PromptsSettings
from producers.prompts.stage import PromptsStage
from schemas.errors import SettingsError
from schemas.reasons import Result
from schemas.records import MemberOutcome, PromptGroup, RewardUse
from tests.unit.producers.world import World, started
from topics.catalog import LEDGER, PROMPTS
from topics.clock import ManualClock
from topics.memory import MemoryLog

RUN = {"partitions": 4, "groups_per_step": 4, "group_size": 2, "max_staleness": 2, "max_steps": 100}  # credit 12


def mix(folder: Path, *curriculum: dict[str, object], **fields: object) -> SourceSettings:
    """Parts `easy` and `hard` of ten prompts each, e0, e1, ... and h0, h1, ..."""
    parts = {}
    for name, weight in (("easy", 3.0), ("hard", 1.0)):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"question": f"{name[0]}{n}"}) + "\n" for n in range(10)))
        parts[name] = {"files": [str(path)], "weight": weight, "shuffle": False}
    return SourceSettings.model_validate({"kind": "mix", "parts": parts, "curriculum": curriculum, **fields})


def opened(settings: SourceSettings, *, seed: int = 1) -> MixSource:
    source = open_source(settings, seed=seed)
    assert isinstance(source, MixSource)
    return source


def part(source: MixSource, index: int) -> str:
    return source.item(index).metadata["part"]


def test_weights_are_shares_and_each_part_is_walked_in_its_own_order(tmp_path: Path) -> None:
    source = opened(mix(tmp_path))
    items = [source.item(index) for index in range(4000)]
    shares = Counter(item.metadata["part"] for item in items)
    assert 0.72 < shares["easy"] / 4000 < 0.78
    for name in ("easy", "hard"):
        texts = [item.text for item in items if item.metadata["part"] == name]
        assert texts == [f"{name[0]}{n % 10}" for n in range(len(texts))]
    assert [item.source_index for item in items] == list(range(4000))
    other = opened(mix(tmp_path))
    assert [other.item(index).text for index in (3999, 0, 2000)] == [items[index].text for index in (3999, 0, 2000)]
    assert [opened(mix(tmp_path), seed=2).item(index).text for index in range(50)] != [each.text for each in items[:50]]


def test_a_course_is_all_that_a_successor_needs(tmp_path: Path) -> None:
    stages: tuple[dict[str, object], ...] = (
        {"weights": {"easy": 1}, "until_step": 2},
        {"weights": {"easy": 1, "hard": 1}, "until_reward": 0.5},
        {"weights": {"hard": 1}},
    )
    source = opened(mix(tmp_path, *stages))
    assert not source.look(0, step=0, reward=1.0), "this stage goes by step"
    assert source.look(8, step=2, reward=None)
    assert not source.look(9, step=99, reward=0.4)
    assert source.look(40, step=99, reward=0.5)
    assert not source.look(41, step=999, reward=9.0), "the last stage stays"
    texts = [source.item(index).text for index in range(100)]
    assert {part(source, index) for index in range(8)} == {"easy"}
    assert {part(source, index) for index in range(8, 40)} == {"easy", "hard"}
    assert {part(source, index) for index in range(40, 100)} == {"hard"}
    assert source.item(60).metadata["course"] == source.course == "8,40"
    successor = opened(mix(tmp_path, *stages))
    successor.restore("8,40")
    assert [successor.item(index).text for index in range(100)] == texts
    assert successor.stage == 2


def test_a_word_of_a_row_is_not_taken_for_the_course(tmp_path: Path) -> None:
    settings = mix(tmp_path, {"weights": {"easy": 1}, "until_step": 2}, {"weights": {"hard": 1}})
    row = json.dumps({"question": "e", "course": "101"}) + "\n"
    (tmp_path / "easy.jsonl").write_text(row)
    source = opened(settings)
    successor = opened(settings)
    successor.restore(source.item(0).metadata["course"])
    assert (source.stage, successor.stage) == (0, 0)


@pytest.mark.parametrize("course", ["8,40,90,7", "40,8", "x", "", "-1"])
def test_a_course_of_another_form_breaks_nothing(tmp_path: Path, course: str) -> None:
    source = opened(mix(tmp_path, {"weights": {"easy": 1}, "until_step": 2}, {"weights": {"hard": 1}}))
    source.restore(course)
    assert source.stage <= 1
    assert source.item(100).text


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"curriculum": [{"weights": {"none": 1}}]}, "weighs 'none'; there are the parts easy, hard"),
        ({"curriculum": [{"weights": {"easy": 0}}]}, "no weight above 0"),
        ({"curriculum": [{"weights": {"easy": 1}, "until_step": 3}]}, "is the last one"),
        ({"curriculum": [{"weights": {"easy": 1}}, {"weights": {"hard": 1}}]}, "must end"),
        ({"parts": {}}, "needs `parts`"),
        ({"kind": "jsonl", "files": ["a"], "parts": {}, "curriculum": [{"weights": {}}]}, "does not use `curriculum`"),
        ({"parts": {"a": {"kind": "mix"}}}, "cannot be used here"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        SourceSettings.model_validate({**mix(tmp_path).model_dump(), **fields})


def test_a_part_with_an_end_is_refused(tmp_path: Path) -> None:
    settings = mix(tmp_path)
    parts = {**settings.parts, "easy": settings.parts["easy"].model_copy(update={"epochs": 2})}
    with pytest.raises(SettingsError, match="part easy of the mix ends after 20 items"):
        open_source(settings.model_copy(update={"parts": parts}), seed=1)


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    made = World(log=memory_log, folder=tmp_path, clock=ManualClock(), fields=RUN)
    made.lineage(1)
    made.publish(1, 0)
    return made


def producer(world: World, settings: SourceSettings) -> PromptsStage:
    stage = PromptsStage(world.context("prompts"), PromptsSettings(source=settings))
    started(stage)
    return stage


def groups(world: World) -> list[PromptGroup]:
    found = [record for record in world.read(PROMPTS) if isinstance(record, PromptGroup)]
    return sorted(found, key=lambda record: record.group)


def train(
    world: World, stage: PromptsStage, *numbers: int, value: float, result: Result = Result.TRAINED, reason: str = ""
) -> None:
    """Close groups, as trained unless said otherwise, with a reward for every member; let the producer hear of it."""
    use = (RewardUse(name="sum", value=value, weight=1.0),)
    members = tuple(
        MemberOutcome(member=number, result=result, reason=reason or None, rewards=use) for number in (0, 1)
    )
    world.write(
        *(
            (LEDGER, replace(world.outcome(group, lineage=1, step=1, result=result), members=members), None)
            for group in numbers
        )
    )
    for _ in range(3):
        stage.turn()


def test_a_stage_by_step_begins_at_its_prompt_whatever_the_speed(world: World, tmp_path: Path) -> None:
    stage = producer(world, mix(tmp_path, {"weights": {"easy": 1}, "until_step": 2}, {"weights": {"hard": 1}}))
    for _ in range(3):
        stage.turn()
    parts = [each.metadata["part"] for each in groups(world)]
    assert parts == ["easy"] * 8 + ["hard"] * 4, "four groups are a step"


@pytest.mark.parametrize(("reason", "part"), [("no_signal", "hard"), ("stale", "easy")])
def test_groups_that_were_dropped_as_they_are_all_solved_count_for_a_stage_by_reward(
    world: World, tmp_path: Path, reason: str, part: str
) -> None:
    settings = mix(tmp_path, {"weights": {"easy": 1}, "until_reward": 0.9}, {"weights": {"hard": 1}}, reward_groups=4)
    stage = producer(world, settings)
    for _ in range(3):
        stage.turn()
    train(world, stage, 0, 1, 2, 3, 4, 5, value=1.0, result=Result.DROPPED, reason=reason)
    assert groups(world)[-1].metadata["part"] == part


def test_a_stage_by_reward_begins_when_its_own_groups_reached_it_and_is_kept_by_a_successor(
    world: World, tmp_path: Path
) -> None:
    settings = mix(tmp_path, {"weights": {"easy": 1}, "until_reward": 0.5}, {"weights": {"hard": 1}}, reward_groups=4)
    stage = producer(world, settings)
    for _ in range(3):
        stage.turn()
    train(world, stage, 0, 1, 2, value=0.9)
    assert {each.metadata["part"] for each in groups(world)} == {"easy"}, "three groups are too few"
    train(world, stage, 3, value=0.1)
    found = groups(world)
    first = next(each.group for each in found if each.metadata["part"] == "hard")
    assert first == 15, "mean 0.7 of four groups, heard before group 15 was admitted"
    assert found[-1].metadata["course"] == "15"
    successor = producer(world, settings)
    train(world, successor, 4, 5, 6, 7, value=0.0)
    later = groups(world)
    assert [each.group for each in later] == list(range(len(later)))
    assert {each.metadata["part"] for each in later[15:]} == {"hard"}, "a stage never comes back"


def test_outcomes_of_a_branch_that_was_given_up_do_not_count(world: World, tmp_path: Path) -> None:
    settings = mix(tmp_path, {"weights": {"easy": 1}, "until_reward": 0.5}, {"weights": {"hard": 1}}, reward_groups=4)
    stage = producer(world, settings)
    for _ in range(3):
        stage.turn()
    train(world, stage, 0, 1, 2, value=0.9)
    world.lineage(2, parent=1, branch_step=0)  # these three were of step 1
    world.publish(2, 0)
    for each in (stage, producer(world, settings)):
        train(world, each, 3, value=0.9)
        assert {each.metadata["part"] for each in groups(world)} == {"easy"}, "of four groups none counts"
