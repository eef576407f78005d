"""The run that faults are put to: whole, small, the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ops.chaos.faults.processes import STAGES
from ops.chaos.settings import CALL_S, LEASE_S, REWARD, ROLLOUT_SESSION_S, ChaosSettings, Limits, chaos_run_file
from ops.chaos.stage_set import layout_of
from ops.run_file import RunFile


def run_file_of(settings: ChaosSettings) -> RunFile:
    return chaos_run_file(settings, bootstrap="127.0.0.1:1", redis_url="redis://127.0.0.1:2/0")


def test_every_stage_has_a_part(tmp_path: Path) -> None:
    layout = layout_of(ChaosSettings(folder=tmp_path / "run"))
    assert set(layout.programs.values()) == set(STAGES)
    assert len(layout.of("rollout")) == 2
    assert sorted(layout.of("reward")) == ["reward-shadow-0", "reward-sum-0", "reward-sum-1"]


def test_a_quick_run_is_smaller(tmp_path: Path) -> None:
    layout = layout_of(ChaosSettings(folder=tmp_path / "run", quick=True))
    assert layout.of("reward") == ["reward-sum-0"]


def test_ranks_are_processes_of_their_own(tmp_path: Path) -> None:
    layout = layout_of(ChaosSettings(folder=tmp_path / "run", ranks=2))
    assert len(layout.of("learner")) == 2


def test_places_are_kept_for_less_time_than_a_group_may_take(tmp_path: Path) -> None:
    run_file = run_file_of(ChaosSettings(folder=tmp_path / "run"))
    assert max(LEASE_S, ROLLOUT_SESSION_S, CALL_S) < run_file.run.group_deadline_s
    assert (run_file.redis.lease_s, run_file.rollout.session_timeout_s) == (LEASE_S, ROLLOUT_SESSION_S)
    assert run_file.rewards[REWARD].timeout_s == CALL_S


def test_copies_follow_the_brokers(tmp_path: Path) -> None:
    settings = ChaosSettings(folder=tmp_path / "run", brokers=3)
    assert run_file_of(settings).kafka.replication_factor == 3
    assert run_file_of(replace(settings, brokers=1)).kafka.replication_factor == 1


def test_the_seed_alone_makes_the_tasks(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        run_file_of(ChaosSettings(folder=tmp_path / name, seed=seed))
        texts.append((tmp_path / name / "tasks.jsonl").read_text())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("limit", ["recovery_s", "total_s", "start_s"])
def test_everything_that_is_waited_for_has_a_limit(limit: str) -> None:
    assert 0 < getattr(Limits(), limit) < 24 * 3600
