"""The command around recorded mode: where it may write, what it tells, and what stays when it ends early."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from consumers.learner.recorded.history import RecordedHistory
from consumers.learner.recorded.report import Verdict
from ops import retrain as command
from ops.curves import read_curve, write_curves
from ops.retrain import RetrainRequest, retrain
from ops.run_file import RunFile, parse_run_file
from pipeline.engines.tiny import TinyShape, make_tiny_model
from schemas.errors import NotRepeatable, SettingsError
from tests.unit.consumers.learner.recorded_world import OPTIMIZER, STEPS, RecordedRun, recorded_run
from topics.memory import MemoryLog


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    folder = tmp_path_factory.mktemp("run")
    make_tiny_model(
        folder / "model", seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1)
    )
    made = recorded_run(MemoryLog(run="r", data_partitions=4), folder, folder / "model")
    for until in (3, STEPS):
        made.live(until=until)
    return made


@pytest.fixture
def run_file(run: RecordedRun) -> RunFile:
    """The settings at hand: another learning rate than the run had."""
    return parse_run_file(
        {
            "run": {"name": "r", "dir": str(run.folder), "partitions": 4},
            "model": {"path": str(run.model)},
            "prompts": {"source": {"files": ["tasks.jsonl"]}},
            "rewards": {"match": {"plugin": "number_match"}},
            "learner": {"optimizer": {"learning_rate": 0.5}},
        },
        origin="test",
    )


def report_in(folder: Path) -> dict[str, object]:
    return cast("dict[str, object]", json.loads((folder / "report.json").read_text()))


def lines_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_a_whole_repetition_tells_what_is_otherwise_and_leaves_report_state_and_model(
    run: RecordedRun, run_file: RunFile, tmp_path: Path
) -> None:
    told: list[str] = []
    verdict = retrain(run.log, run_file, request=RetrainRequest(into=tmp_path / "new"), say=told.append)
    assert verdict.same
    assert any("lineage 1 had other settings" in line and "optimizer" in line for line in told), told
    found = report_in(tmp_path / "new")
    assert (found["same"], found["complete"], found["last_step"], found["num_compared"]) == (True, True, 6, 7)
    assert found["notes"] == told
    assert [line["step"] for line in lines_in(tmp_path / "new")] == list(range(STEPS + 1))
    assert {each.name for each in (tmp_path / "new").iterdir()} == {"report.json", "steps.jsonl", "state", "model"}


def test_what_was_done_before_it_ended_stays_and_is_not_called_complete(
    run: RecordedRun, run_file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_a_sample(log: object, *, until_step: int | None) -> RecordedHistory:
        assert (log, until_step) == (run.log, None)
        history = run.history()
        lost = history.steps[3]
        groups = (replace(lost.groups[0], attempt="never made"), *lost.groups[1:])
        return replace(
            history, steps=[replace(each, groups=groups) if each is lost else each for each in history.steps]
        )

    monkeypatch.setattr(command, "read_history", without_a_sample)
    with pytest.raises(NotRepeatable, match="steps 1 to 3 can be repeated"):
        retrain(run.log, run_file, request=RetrainRequest(into=tmp_path / "new"), say=lambda _: None)
    found = report_in(tmp_path / "new")
    assert (found["complete"], found["last_step"], found["recorded_steps"]) == (False, 3, STEPS)
    assert [line["agrees"] for line in lines_in(tmp_path / "new")] == [True] * 4
    assert not (tmp_path / "new" / "model").exists()


def test_a_check_stops_at_the_first_difference_and_leaves_no_weights(
    run: RecordedRun, run_file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_reward(_: object, *, until_step: int | None) -> RecordedHistory:
        history = run.history(until_step=until_step)
        changed = history.steps[1]
        first = changed.groups[0]
        groups = (replace(first, rewards=(9.0, *first.rewards[1:])), *changed.groups[1:])
        return replace(
            history, steps=[replace(each, groups=groups) if each is changed else each for each in history.steps]
        )

    monkeypatch.setattr(command, "read_history", with_another_reward)
    request = RetrainRequest(into=tmp_path / "new", check_only=True)
    verdict = retrain(run.log, run_file, request=request, say=lambda _: None)
    assert not verdict.same
    found = report_in(tmp_path / "new")
    assert (found["same"], found["complete"], found["first_differing_step"]) == (False, False, 2)
    assert {each.name for each in (tmp_path / "new").iterdir()} == {"report.json", "steps.jsonl"}


def test_folders_in_use_and_the_runs_own_are_refused(run: RecordedRun, run_file: RunFile, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    (tmp_path / "file").touch()
    for into, why in (
        (tmp_path / "full", "is there already"),
        (run.folder / "r" / "checkpoints" / "9.9", "only read"),
        (tmp_path / "file" / "new", "cannot be written"),
    ):
        with pytest.raises(SettingsError, match=why):
            retrain(run.log, run_file, request=RetrainRequest(into=into), say=lambda _: None)
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["kept"]


def test_with_another_rate_the_samples_are_the_same_and_the_training_is_another(
    run: RecordedRun, run_file: RunFile, tmp_path: Path
) -> None:
    def trained(into: str, **changes: object) -> tuple[Verdict, list[dict[str, object]]]:
        request = RetrainRequest(into=tmp_path / into, changes=changes)
        return retrain(run.log, run_file, request=request, say=lambda _: None), lines_in(tmp_path / into)

    _, before = trained("as-it-was")
    same, again = trained("the-runs-own", lr=OPTIMIZER.learning_rate)
    assert same.same, "a value that the run had is no change"
    verdict, other = trained("faster", lr=0.05, **{"learner.loss.minibatches": 2})
    assert verdict.changes == {
        "learner.optimizer.learning_rate": (str(OPTIMIZER.learning_rate), "0.05"),
        "learner.loss.minibatches": ("1", "2"),
    }
    assert (verdict.same, verdict.num_compared, verdict.last_step) == (False, 0, STEPS)
    assert [each["num_samples"] for each in other] == [each["num_samples"] for each in before]
    assert [each["reward_mean"] for each in other] == [each["reward_mean"] for each in before]
    assert [each["training_digest"] for each in again] == [each["training_digest"] for each in before]
    assert {each["training_digest"] for each in other[1:]}.isdisjoint(each["training_digest"] for each in before)
    found = report_in(tmp_path / "faster")
    assert (found["same"], found["complete"]) == (None, True)
    curves = [read_curve(tmp_path / name) for name in ("as-it-was", "faster")]
    assert curves[0].label == "as-it-was (as the run)"
    assert curves[1].label == "faster (learning_rate = 0.05, minibatches = 2)"
    assert curves[0].values["loss"] != curves[1].values["loss"]
    write_curves(curves, tmp_path / "plots" / "both.svg")
    drawn = (tmp_path / "plots" / "both.svg").read_text()
    assert all(curve.label in drawn for curve in curves)


def test_changes_that_change_nothing_or_are_wrong_are_refused_before_anything_is_trained(
    run: RecordedRun, run_file: RunFile, tmp_path: Path
) -> None:
    wrong: dict[str, object] = {
        "run.max_staleness": 9,
        "learner.cloning_source": "x",
        "learner.optimizer.speed": 1,
        "learner.seed.more": 1,
        "lr": -1,
    }
    for name, value in wrong.items():
        with pytest.raises(SettingsError, match="nothing was trained"):
            retrain(
                run.log,
                run_file,
                request=RetrainRequest(into=tmp_path / "new", changes={name: value}),
                say=lambda _: None,
            )
    with pytest.raises(SettingsError, match="is no folder that"):
        read_curve(tmp_path)
    assert not (tmp_path / "new").exists()
