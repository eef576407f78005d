"""Planted delays are settings that a run file takes, and what their traces say comes out in numbers."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from types import ModuleType

import pytest

from ops.bench.material import make_groups
from ops.bench.observe.delays import DELAY_S, MEMBER, PLANTS, Plant, Planted, overrides, rows, took_s
from ops.bench.observe.traces import Traced, trace_result, traced
from ops.bench.result import Noise
from ops.run_file import load_run_file
from pipeline.environments.base import Action, Task
from tests.unit.ops.trace.slow_run import GROUP, HOPS, TRAINED, SlowRun


def loaded(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("delayed", folder / "delayed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_plant_comes_as_often_with_a_delay_as_without_and_the_run_file_takes_it(tmp_path: Path) -> None:
    said = [Planted.of(row) for row in rows(3)]
    for plant in PLANTS:
        delays = sorted(each.delay_s for each in said if each is not None and each.plant == plant)
        assert delays == [0.0] * 3 + [DELAY_S] * 3
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(path, overrides=overrides(tmp_path / "planted", repeats=3))
    assert run_file.environment is not None
    assert run_file.environment.plugin.endswith("delayed.py:OneTurn")
    assert len(run_file.prompts.source.files[0].read_bytes().splitlines()) == len(said)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_plant_is_slow_and_fails_at_its_hop_and_its_member_only(tmp_path: Path, plant: Plant) -> None:
    overrides(tmp_path / "planted", repeats=1)
    plugins = loaded(tmp_path / "planted")
    sample = next(make_groups("r", num_groups=1, group_size=2, num_tokens=2))[MEMBER]
    metadata = dict(Planted(plant=plant, delay_s=0.01).metadata)
    for at, member in (("reward", MEMBER), ("generation", MEMBER), ("reward", 0), ("generation", 0)):
        wanted = (0.01, plant.fate == "failed") if (at, member) == (plant.at, MEMBER) else (0.0, False)
        assert plugins.planted(metadata, at=at, member=member) == wanted
    acted = asyncio.run(_acted(plugins, folder=tmp_path / "planted", metadata=metadata))
    assert acted == (plant != Plant(fate="failed", at="generation"))
    assert took_s(tmp_path / "planted").keys() == ({sample.group} if plant.at == "generation" else set())


async def _acted(plugins: ModuleType, *, folder: Path, metadata: Mapping[str, str]) -> bool:
    turn = plugins.OneTurn(folder=str(folder))
    await turn.reset(Task(run="r", group=0, member=MEMBER, prompt="", answer=None, metadata=metadata, seed=0))
    try:
        return bool((await turn.step(Action(text="", turn=0, finish_reason="stop", last=True))).done)
    except ValueError:
        return False


def test_the_hop_that_grew_is_found_by_its_growth() -> None:
    plant = Plant(fate="trained", at="reward")
    usual = tuple({"is generated": 0.1, plant.hop: took_s} for took_s in (0.01, 0.02, 0.03))
    delayed = tuple({"is generated": 0.11, plant.hop: took_s} for took_s in (0.52, 0.53, 0.80))
    each = Traced(plant=plant, delayed=delayed, usual=usual, planted_s=(0.5, 0.5, 0.5), ends=("trained into 1.1",) * 3)
    assert each.found_at == plant.hop
    assert each.error == pytest.approx(0.02)
    found = trace_result([each], noise=Noise()).values
    assert found["trained_reward_found_s"] == pytest.approx(0.51)
    assert found["trained_reward_within_share"] == pytest.approx(2 / 3, abs=1e-3)
    assert found["trained_reward_is_at_its_hop"] == found["trained_reward_fate_share"] == 1


def test_a_delay_of_another_hop_is_not_taken_for_the_planted_one() -> None:
    plant = Plant(fate="trained", at="generation")
    each = Traced(
        plant=plant,
        delayed=({plant.hop: 0.1, "is loaded": 0.6},),
        usual=({plant.hop: 0.1, "is loaded": 0.1},),
        planted_s=(0.5,),
        ends=("dropped",),
    )
    assert each.found_at == "is loaded"
    assert trace_result([each], noise=Noise()).values["trained_generation_fate_share"] == 0


def test_lives_are_sorted_to_their_plants() -> None:
    plant = Plant(fate="trained", at="reward")
    run = SlowRun(TRAINED, slow=plant.hop)
    lives = traced(run.source, {GROUP: Planted(plant=plant, delay_s=DELAY_S)}, took={GROUP: 0.5})
    (mine,) = [each for each in lives if each.plant == plant]
    assert mine.delayed[0][plant.hop] == pytest.approx(HOPS[plant.hop] + 0.5)
    assert mine.planted_s == (0.5,)
    assert not mine.usual
