"""Calls that take much longer than others: who takes over, for how long they go on, what is told of it (Case 21)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.rewards.call import Answer
from consumers.rewards.pool import Job
from consumers.rewards.scorer_process import ScorerProcess
from consumers.rewards.wire import Reply
from tests.unit.consumers.rewards.helpers import Rig, pool_of, rewards_of, sample, score, turn_until, write_samples
from topics.catalog import REWARDS
from topics.clock import Deadline

APART = "tests.unit.consumers.rewards.apart"
LONG_S = 200.0  # on a machine that has little to spare: calls are timed by what they had of it


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    for stage in rig.started:
        stage.stop(deadline=Deadline.after(5))


def test_that_no_more_processes_may_be_started_is_told_once(rig: Rig, tmp_path: Path) -> None:
    write_samples(rig.log, (sample(group) for group in range(300)))
    options = {"file": str(tmp_path / "go-on")}
    plugin = f"{APART}:waits_on_1_in_100"
    stage = rig.stage(plugin=plugin, isolation="process", options=options, num_workers=1, held_workers=1)
    turn_until(stage, lambda: bool(rig.events("scorers_held")), limit_s=LONG_S)
    (tmp_path / "go-on").touch()
    score(rig, 300, stage)
    (told,) = rig.events("scorers_held")
    assert told.gauges["num_held"] == 2
    assert told.gauges["most_per_s"] == pytest.approx(2 / 120)
    assert "2 of 2 processes" in told.details["text"]
    assert stage._context.metrics.snapshot()["calls_held"] >= 1


def test_who_waits_for_the_place_of_a_held_call_has_it_at_the_limit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose processors are all taken: by its own time a held call would have its process for 300 s."""
    monkeypatch.setattr("consumers.rewards.scorer_process._LEAST_STRETCH_S", 300.0)
    charged_s = ScorerProcess._charged_s
    monkeypatch.setattr(ScorerProcess, "_charged_s", lambda one: 0.0 if one.is_held else charged_s(one))
    write_samples(rig.log, (sample(group) for group in range(400)))
    plugin = f"{APART}:loops_on_1_in_100"
    changes = {"isolation": "process", "timeout_s": 0.3, "timeout_retries": 0, "num_workers": 1, "held_workers": 2}
    stage = rig.stage("math", plugin=plugin, **changes)
    turn_until(stage, lambda: 107 in {one.group for one in rewards_of(rig.log, REWARDS)}, limit_s=LONG_S)
    failures = {one.group: one.failure for one in rewards_of(rig.log, REWARDS) if one.failure is not None}
    assert set(failures) <= {7, 107, 207, 307}, "only calls that hang are ended"
    assert failures[107] == "timeout: no value within 0.3 s"


def test_a_held_call_that_had_no_processor_keeps_its_place(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be an ordinary call that had no turn; one that worked for long gives the place up."""
    monkeypatch.setattr("consumers.rewards.scorer_process._LEAST_STRETCH_S", 300.0)
    has_run = ScorerProcess.has_run
    monkeypatch.setattr(ScorerProcess, "has_run", lambda one, least_s: False)
    write_samples(rig.log, (sample(group) for group in range(400)))
    plugin = f"{APART}:loops_on_1_in_100"
    changes = {"isolation": "process", "timeout_s": 60.0, "num_workers": 1, "held_workers": 1}
    stage = rig.stage("math", plugin=plugin, **changes)
    pool = pool_of(stage)
    turn_until(stage, lambda: pool.held().is_short, limit_s=LONG_S)
    assert pool._wanted() is None
    monkeypatch.setattr(ScorerProcess, "has_run", has_run)
    turn_until(stage, lambda: pool._wanted() is not None, limit_s=LONG_S)


def test_the_last_process_is_left_alone_however_long_its_call(rig: Rig, tmp_path: Path) -> None:
    """It stays the process it is, with what is behind the call: of a large model there may be one, and no room."""
    write_samples(rig.log, (sample(group) for group in range(60)))
    options = {"file": str(tmp_path / "go-on")}
    changes = {"isolation": "process", "num_workers": 1, "held_workers": 0, "options": options}
    stage = rig.stage("math", plugin=f"{APART}:waits_on_1_in_100", **changes)
    pool = pool_of(stage)
    turn_until(stage, lambda: pool.held().num == 1, limit_s=LONG_S)
    (process,) = pool._processes
    assert not process.is_held
    (tmp_path / "go-on").touch()
    score(rig, 60, stage)
    assert pool._processes == [process]
    assert pool.held().num == 0


def test_what_is_usual_for_a_call_leaves_out_its_wait_for_a_processor(rig: Rig) -> None:
    write_samples(rig.log, [sample(0)])
    stage = rig.stage(plugin=f"{APART}:pid", isolation="process", num_workers=1)
    score(rig, 1, stage)
    pool = pool_of(stage)
    (process,) = pool._processes
    for number in range(1000, 1064):
        process.send(number, Job(items=()))
        answer = Answer(duration_ms=100.0)
        list(pool._replied(process, Reply(number=number, answer=answer, waited_ms=95.0)))
    assert pool._usual_ms == pytest.approx(5.0, rel=0.1)
    assert pool._mean_ms == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize("has_run", [True, False])
def test_only_a_held_call_that_had_a_processor_stands_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    """One that had none yet may be an ordinary call on a full machine, and would never get one."""
    stood_back: list[ScorerProcess] = []

    def stand_back(process: ScorerProcess) -> None:
        stood_back.append(process)

    monkeypatch.setattr(ScorerProcess, "has_run", lambda one, least_s: has_run)
    monkeypatch.setattr(ScorerProcess, "_stand_back", stand_back)
    write_samples(rig.log, (sample(group) for group in range(200)))
    plugin = f"{APART}:loops_on_1_in_100"
    stage = rig.stage("math", plugin=plugin, isolation="process", timeout_s=1.0, timeout_retries=0, num_workers=1)
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) == 200, limit_s=LONG_S)
    assert stage._context.metrics.snapshot()["calls_held"] >= 1
    assert bool(stood_back) is has_run
