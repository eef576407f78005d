"""Combinations of settings that cannot make progress."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from ops.demo import TASKS
from ops.run_checks import check_run
from ops.run_file import RunFile, load_run_file
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL

HTTP = ["rollout.engine=http", 'rollout.http.base_urls=["http://a:1", "http://b:1"]']

SCALED = ["scheduler.policy=reactive", "rewards.sum.max_replicas=2"]


def run_file(folder: Path, *overrides: str) -> RunFile:
    path = folder / "run.toml"
    path.write_text(MINIMAL)
    return load_run_file(path, overrides=overrides)


def test_the_defaults_work_without_a_warning(tmp_path: Path) -> None:
    assert check_run(run_file(tmp_path)) == []


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["run.min_group_members=9"], ["run.min_group_members = 9", "run.group_size = 8"]),
        (["rewards.sum.weight=0"], ["rewards", "nothing to learn from"]),
        (["rollout.max_sequences=7"], ["rollout.max_sequences = 7", "run.group_size = 8"]),
        (["learner.buffer_bytes=1000"], ["learner.buffer_bytes = 1000", "24 groups"]),
        (["learner.ranks=9"], ["learner.ranks = 9", "run.partitions = 8"]),
        (["learner.max_ranks=9"], ["learner.max_ranks = 9", "run.partitions = 8"]),
        (
            ["run.slots=3", "rollout.replicas=2", "learner.ranks=2"],
            ["rollout.replicas = 2 and learner.ranks = 2 need 4 slots at the start, run.slots = 3"],
        ),
        (["rewards.sum.plugin=environment"], ["rewards.sum.plugin", "no [environment]"]),
        (["rewards.sum.weight=0", "rewards.sum.gate_above=0"], ["all are gates of weight 0"]),
        (
            ["environment.plugin=guess", "evaluation.e.plugin=environment", 'evaluation.e.source.files=["a"]'],
            ["evaluation.e.plugin = environment", "no [evaluation.e.environment]"],
        ),
        (
            ["environment.plugin=guess", "environment.episode_limit_s=130"],
            ["environment.episode_limit_s = 130", "run.group_deadline_s = 120"],
        ),
        (
            ["environment.plugin=guess", "environment.episode_limit_s=700", "run.group_deadline_s=800"],
            ["environment.episode_limit_s = 700", "learner.silent_end_s = 600"],
        ),
        (["environment.plugin=guess", "learner.buffer_bytes=8000000"], ["learner.buffer_bytes = 8000000", "13369344"]),
        (["learner.cloning.num_steps=5"], ["learner.cloning.source is not set"]),
        (["rollout.engine=http"], ["names 0 server(s)", "rollout.replicas = 1"]),
        ([*HTTP, "rollout.replicas=3", "run.partitions=12"], ["names 2 server(s)", "rollout.replicas = 3"]),
        ([*HTTP, "rollout.max_replicas=3", "run.partitions=12"], ["names 2 server(s)", "rollout.max_replicas = 3"]),
        (
            ["rollout.engine=http", 'rollout.http.base_urls=["http://a:1", "http://a:1/"]', "rollout.replicas=2"],
            ["http://a:1 more than once"],
        ),
    ],
)
def test_what_cannot_work_is_refused_with_both_settings(tmp_path: Path, overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        check_run(run_file(tmp_path, *overrides))
    assert all(part in caught.value.message for part in parts), caught.value.message


def test_a_rollout_that_retires_has_time_to_give_its_groups_back(tmp_path: Path) -> None:
    (warning,) = check_run(run_file(tmp_path, "environment.plugin=guess", "environment.retire_s=60"))
    assert "environment.retire_s = 60" in warning


@pytest.mark.parametrize("task", TASKS)
def test_the_demos_work(task: str) -> None:
    made = load_run_file(Path(str(files("ops") / TASKS[task])))
    assert check_run(made) == []
    assert made.model.path == made.run.folder / "model"
    assert (made.environment is None) == (task == "sums")


@pytest.mark.parametrize("limits", [["learner.min_ranks=2"], ["learner.ranks=3", "learner.max_ranks=2"]])
def test_ranks_are_within_their_limits(tmp_path: Path, limits: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"ranks = \d is not within min_ranks = \d and max_ranks = \d"):
        run_file(tmp_path, *limits)


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"2 combination\(s\)"):
        check_run(run_file(tmp_path, "rollout.max_sequences=7", "learner.cloning.num_steps=5"))


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["rollout.replicas=3"], "below 4 x rollout.replicas = 12"),
        (["rollout.max_replicas=3"], "below 4 x rollout.max_replicas = 12"),
        (["run.publish_lag_versions=3"], "run.publish_lag_versions = 3 reaches run.max_staleness + 1 = 3"),
        (["learner.ranks=3"], "run.partitions = 8 is no multiple of learner.ranks = 3"),
        (["learner.max_ranks=4"], "is no multiple of learner.ranks = 3:"),
        (["learner.max_ranks=2", "learner.collective_limit_s=30"], "will take rank 0 for dead"),
        (["run.slots=3", "learner.max_ranks=3"], "learner.max_ranks = 3 is never reached: of run.slots = 3 rollouts"),
        (["run.slots=2", "rollout.max_replicas=2"], "rollout.max_replicas = 2 is never reached: of run.slots = 2 the"),
        (HTTP, "names 2 servers and rollout.replicas = 1: those after the first 1 are not used"),
        ([*SCALED, "scheduler.scale_up_cool_down_s=14"], "scheduler.scale_up_cool_down_s = 14 is below half of"),
        ([*SCALED, "scheduler.lag_max_age_s=5"], "scheduler.lag_max_age_s = 5 is not above scheduler.lag_interval_s"),
        ([*SCALED, "run.heartbeat_s=10"], "scheduler.silence_s = 10 is not above run.heartbeat_s = 10"),
        (["run.metrics_port=9100", "rewards.sum.replicas=60"], "those after the first 64 would be refused"),
        (["run.group_size=1"], "advantages of zero"),
        (["run.max_staleness=0"], "synchronous"),
    ],
)
def test_what_works_badly_is_a_warning(tmp_path: Path, overrides: list[str], part: str) -> None:
    warnings = check_run(run_file(tmp_path, *overrides))
    assert any(part in warning for warning in warnings), warnings


def test_a_bound_that_is_off_makes_a_long_publish_lag_no_matter(tmp_path: Path) -> None:
    assert check_run(run_file(tmp_path, "run.publish_lag_versions=3", "run.on_stale=train")) == []


@pytest.mark.parametrize("url", ["http://host:1", "redis://host:port/0", ""])
def test_a_redis_address_that_cannot_be_read_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match=r"redis\.url") as caught:
        check_run(run_file(tmp_path, f'redis.url="{url.replace("//", "//me:secret@")}"'))
    assert "secret" not in caught.value.message


def test_as_many_servers_as_rollout_processes_are_fine(tmp_path: Path) -> None:
    assert check_run(run_file(tmp_path, *HTTP, "rollout.replicas=2")) == []
    assert check_run(run_file(tmp_path, HTTP[1])) == [], "another engine asks none of them"


@pytest.mark.parametrize(
    "overrides",
    [
        [*SCALED, "scheduler.scale_up_cool_down_s=15"],
        ["rewards.sum.max_replicas=2", "scheduler.scale_up_cool_down_s=1"],  # static: nothing is scaled
        ["scheduler.policy=reactive", "scheduler.lag_max_age_s=1"],  # there is nothing that could be
        ["run.metrics_port=0", "rewards.sum.replicas=60"],
        ["run.metrics_port=9100", "rewards.sum.replicas=58"],  # with peer, learner, scheduler, prompts, rollout, up
    ],
)
def test_what_goes_together_is_no_warning(tmp_path: Path, overrides: list[str]) -> None:
    assert check_run(run_file(tmp_path, *overrides)) == []
