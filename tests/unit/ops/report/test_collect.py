"""The numbers of the summary, on a run whose topics are known record by record."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.report.collect import collect, summarise
from ops.report.summary import RunSummary
from ops.run_file import RunFile
from tests.unit.ops.report.made_run import PARTITIONS, START_MS, MadeRun, settings, two_lineages, v
from topics.memory import MemoryLog


@pytest.fixture
def log(run_name: str) -> MemoryLog:
    return MemoryLog(run=run_name, data_partitions=PARTITIONS)


@pytest.fixture
def run_file(run_name: str, tmp_path: Path) -> RunFile:
    return settings(run_name, folder=tmp_path)


def _summary(log: MemoryLog, run_file: RunFile) -> RunSummary:
    return summarise(collect(log, run_file=run_file), run_file=run_file)


def test_every_id_is_in_one_place_of_the_surviving_history(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    summary = _summary(log, run_file)
    assert summary.samples_produced == 12
    assert summary.samples_trained == 6  # groups 0, 1, 3: the void outcomes of 1 and 2 do not count
    assert summary.dropped == {"abandoned_branch": 2, "incomplete": 2}
    assert summary.failed == {}
    assert summary.open == 2
    assert summary.trained_twice == 0
    assert (summary.steps, summary.lineages) == (3, 2)


def test_ages_are_those_of_the_surviving_history(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    summary = _summary(log, run_file)
    assert summary.max_trained_age == 1  # group 3: cut at step 2, born at step 1
    assert summary.share_trained_at_age_1_or_more == pytest.approx(1 / 3)
    assert summary.staleness_bound == 2


def test_rewards_of_an_abandoned_branch_do_not_count(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    facts = collect(log, run_file=run_file)
    means = {step: spread.mean for step, spread in facts.scores.by_step.items()}
    assert means == {0: 1.0, 1: 1.0}  # weight 2 times (0, 1); (0, 0) of group 1 with (1, 1) of group 3
    assert _summary(log, run_file).reward_first == pytest.approx(1.0)


def test_first_and_last_versions_are_windows_of_ten(log: MemoryLog, run_file: RunFile) -> None:
    made = MadeRun(log)
    made.lineage(1)
    for step in range(25):
        value = 0.0 if step < 10 else 0.25 if step < 15 else 0.5
        made.group(step, version=v(1, step), values=(value, value))
    made.end()
    summary = _summary(log, run_file)
    assert summary.reward_first == 0.0
    assert summary.reward_last == 1.0  # weight 2


def test_a_sample_counts_with_the_weights_it_was_trained_with(log: MemoryLog, run_file: RunFile) -> None:
    made = MadeRun(log)
    made.lineage(1)
    made.group(0, version=v(1, 0), values=(0.0, 1.0))
    made.trained(0, at=v(1, 1), birth=v(1, 0), weight=6.0)  # of an earlier phase
    made.group(1, version=v(1, 1), values=(0.0, 1.0))  # open
    made.end()
    means = {step: spread.mean for step, spread in collect(log, run_file=run_file).scores.by_step.items()}
    assert means == {0: 3.0, 1: 1.0}


def test_a_second_copy_of_a_sample_or_reward_changes_nothing(log: MemoryLog, run_file: RunFile) -> None:
    made = MadeRun(log)
    made.lineage(1)
    made.group(0, version=v(1, 0), values=(0.0, 1.0))
    made.sample(0, 1, version=v(1, 0))
    made.reward(0, 1, value=0.25)
    made.reward(0, 0, value=9.0, name="shadow")
    made.end()
    assert collect(log, run_file=run_file).scores.by_step[0].num == 2
    assert _summary(log, run_file).reward_first == 1.0


def test_an_id_trained_twice_is_counted(log: MemoryLog, run_file: RunFile) -> None:
    made = MadeRun(log)
    made.lineage(1)
    made.group(0, version=v(1, 0), values=(0.0, 1.0))
    made.trained(0, at=v(1, 1), birth=v(1, 0))
    made.trained(0, at=v(1, 2), birth=v(1, 0))
    made.end()
    assert _summary(log, run_file).trained_twice == 2


def test_versions_count_when_their_manifest_is_gone(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    assert _summary(log, run_file).weights_published == 7


def test_time_goes_to_phases_also_of_a_process_that_was_killed(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    summary = _summary(log, run_file)
    # waiting: 3 s and 1 s; forward_backward: from 3 s to the last event of the killed process at 6 s
    assert summary.waits["learner"] == pytest.approx({"waiting_for_data": 4 / 7, "forward_backward": 3 / 7})
    assert summary.training_s == pytest.approx(10.0)
    assert summary.tokens_generated == 9 * 3
    assert summary.tokens_per_s == pytest.approx(2.7)


def test_the_time_in_which_a_run_was_stopped_is_no_training(log: MemoryLog, run_file: RunFile) -> None:
    made = MadeRun(log)
    made.lineage(1)
    made.prompt(0)
    learner = "learner-host-11-aaaaaa"
    for at_s in (1, 15, 30, 1000, 1015, 1030):  # stopped for 16 minutes
        made.event(learner, "heartbeat", name="heartbeat", at_s=at_s)
    made.event(learner, "notice", name="step", at_s=1035, version=v(1, 1))
    made.end()
    training_s = _summary(log, run_file).training_s
    assert training_s is not None
    assert 60 <= training_s <= 85, "35 s before and 35 s after, to the width of the spans"


def test_processes_are_named_with_stage_and_pid(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    summary = _summary(log, run_file)
    assert [(each.stage, each.pid) for each in summary.processes] == [
        ("learner", 11),
        ("learner", 12),
        ("scheduler", 41),
    ]


def test_clocks_that_go_back_clamp_at_zero(log: MemoryLog, run_file: RunFile) -> None:
    made = MadeRun(log)
    made.lineage(1)
    made.prompt(0)
    made.event("learner-host-11-aaaaaa", "phase_began", name="waiting_for_data", at_s=-20)
    made.event("learner-host-11-aaaaaa", "notice", name="step", at_s=-30, version=v(1, 1))
    made.end()
    summary = _summary(log, run_file)
    assert summary.training_s == 0.0
    assert summary.tokens_per_s is None
    assert summary.clock_skews == 1


def test_an_empty_run_has_a_summary(log: MemoryLog, run_file: RunFile) -> None:
    summary = _summary(log, run_file)
    assert (summary.samples_produced, summary.steps, summary.reward_first) == (0, 0, None)
    assert "0 produced" in summary.text()


def test_who_scores_after_the_end_is_no_part_of_the_runs_time(log: MemoryLog, run_file: RunFile) -> None:
    two_lineages(log)
    run = MadeRun(log)
    for instance in ("learner-host-12-bbbbbb", "scheduler-host-41-cccccc"):
        run.event(instance, "notice", name="stopped", at_s=11)
    usual = _summary(log, run_file)
    run.event("reward-host-99-dddddd", "phase_began", name="scoring", at_s=300)
    for at_s in range(301, 400, 2):
        run.event("reward-host-99-dddddd", "heartbeat", name="heartbeat", at_s=at_s)
    run.end()
    facts = collect(log, run_file=run_file)
    assert [each.instance for each in facts.afterwards] == ["reward-host-99-dddddd"]
    again = summarise(facts, run_file=run_file)
    assert (again.num_processes, again.waits) == (usual.num_processes, usual.waits)
    last_ms = max(each.began_ms + each.bin_ms * len(each.values) for each in facts.series.values())
    assert last_ms < START_MS + 60_000
    assert "missing" not in {each.last.kind for each in facts.verdicts}
