"""Which processes a run consists of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from consumers.reference.settings import reference_group
from consumers.scheduler.stage import SchedulerStage
from ops.run_stage import StageRequest, context_of, labels_of
from ops.supervisor.processes import Program
from ops.wiring import StageChoice, build_stage, pool_of, programs, scale_limits
from pipeline.stage import make_context
from schemas.errors import SettingsError
from tests.unit.ops.test_run_checks import run_file
from topics.catalog import rollout_group
from topics.memory import MemoryLog


def learners(tmp_path: Path, *changes: str) -> list[Program]:
    made = programs(run_file(tmp_path, *changes), settings_file=tmp_path)
    return [program for program in made if program.stage == "learner"]


def test_a_learner_of_one_rank_for_ever_is_one_process_of_the_stages_name(tmp_path: Path) -> None:
    (one,) = learners(tmp_path)
    assert (one.name, one.unit, one.spare, one.size_setting) == ("learner", "learner", False, "")
    assert one.arguments == ("run", "learner", "--config", str(tmp_path))


def test_a_learner_whose_ranks_may_change_is_told_how_many_there_are(tmp_path: Path) -> None:
    made = learners(tmp_path, "learner.ranks=2", "learner.min_ranks=1", "learner.max_ranks=4")
    assert [(each.name, each.target, each.spare, each.pooled) for each in made] == [
        ("learner-0", "learner", False, True),
        ("learner-1", "learner", False, True),
        ("learner-2", "learner", True, True),
        ("learner-3", "learner", True, True),
    ]
    limits = ("--set", "learner.min_ranks=1", "--set", "learner.max_ranks=4")
    assert [each.arguments[-6:] for each in made] == [("--slot", str(rank), *limits) for rank in range(4)]
    assert {each.size_setting for each in made} == {"learner.ranks"}
    settings = run_file(tmp_path, "learner.max_ranks=4")
    assert scale_limits(settings, stages=("learner", "peer")) == {"learner": (1, 4)}


def test_a_reference_model_is_a_process_where_the_run_file_has_one(tmp_path: Path) -> None:
    def of(*changes: str) -> list[str]:
        made = programs(run_file(tmp_path, *changes), settings_file=tmp_path)
        return [program.name for program in made if program.stage == "reference"]

    assert of() == []
    assert of("reference={}") == ["reference"]
    assert of("reference.replicas=2") == ["reference-0", "reference-1"]
    scaled = run_file(tmp_path, "reference.max_replicas=2", 'redis.url="none"')
    made = [each for each in programs(scaled, settings_file=tmp_path) if each.stage == "reference"]
    assert [(each.name, each.target, each.spare) for each in made] == [
        ("reference-0", "reference", False),
        ("reference-1", "reference", True),
    ]
    log = MemoryLog(run="r", data_partitions=2)
    scheduler = build_stage(
        StageChoice(stage="scheduler"), scaled, context=make_context(log, run=scaled.run, stage="scheduler")
    )
    assert isinstance(scheduler, SchedulerStage)
    assert [(each.target, each.group, each.most) for each in scheduler._fleet] == [
        ("reference", reference_group(scaled.run.name), 2)
    ]
    settings = run_file(tmp_path, 'redis.url="none"')
    context = make_context(log, run=settings.run, stage="reference")
    with pytest.raises(SettingsError, match="no reference model"):
        build_stage(StageChoice(stage="reference"), settings, context=context)


def test_a_pool_is_held_where_rollouts_and_learner_are(tmp_path: Path) -> None:
    settings = run_file(tmp_path, "run.slots=4")
    assert pool_of(settings, stages=("rollout", "learner", "peer")) == 4
    assert pool_of(settings, stages=("reward",)) is None
    assert pool_of(run_file(tmp_path), stages=("rollout",)) is None
    with pytest.raises(SettingsError, match=r"run\.slots = 4 is a pool .* only rollout is started here"):
        pool_of(settings, stages=("rollout", "reward"))


def test_several_ranks_are_processes_of_one_unit(tmp_path: Path) -> None:
    made = programs(run_file(tmp_path, "learner.ranks=3"), settings_file=tmp_path)
    ranks = [program for program in made if program.stage == "learner"]
    assert [program.name for program in ranks] == ["learner-0", "learner-1", "learner-2"]
    assert [program.arguments[-2:] for program in ranks] == [("--slot", str(rank)) for rank in range(3)]
    assert {program.unit for program in ranks} == {"learner"}
    assert len({program.log_file for program in made}) == len(made)


def test_programs_up_to_the_most_are_there_and_those_above_replicas_are_spare(tmp_path: Path) -> None:
    settings = run_file(tmp_path, "rollout.max_replicas=3", "rewards.sum.replicas=2", "rewards.sum.min_replicas=1")
    made = [each for each in programs(settings, settings_file=tmp_path) if each.stage in ("rollout", "reward")]
    assert [(each.name, each.target, each.spare) for each in made] == [
        ("rollout-0", "rollout", False),
        ("rollout-1", "rollout", True),
        ("rollout-2", "rollout", True),
        ("reward-sum-0", "reward.sum", False),
        ("reward-sum-1", "reward.sum", False),
    ]
    assert [each.arguments[-2:] for each in made] == [("--slot", each.name[-1]) for each in made]
    assert len({each.log_file for each in made}) == len(made)
    assert scale_limits(settings, stages=("rollout", "reward")) == {"rollout": (1, 3), "reward.sum": (1, 2)}
    assert scale_limits(settings, stages=("reward", "peer")) == {"reward.sum": (1, 2)}


def test_the_scheduler_hears_of_what_may_be_scaled(tmp_path: Path) -> None:
    settings = run_file(tmp_path, "learner.max_ranks=4", "rollout.max_replicas=2", "run.slots=5", 'redis.url="none"')
    log = MemoryLog(run=settings.run.name, data_partitions=settings.run.partitions)
    context = make_context(log, run=settings.run, stage="scheduler")
    stage = build_stage(StageChoice(stage="scheduler"), settings, context=context)
    assert isinstance(stage, SchedulerStage)
    assert [(each.target, each.group, each.least, each.most, each.initial) for each in stage._fleet] == [
        ("rollout", rollout_group(settings.run.name), 1, 2, 1),
        ("learner", "", 1, 4, 1),
    ]


def test_a_rank_there_is_not_is_refused(tmp_path: Path) -> None:
    settings = run_file(tmp_path, "learner.ranks=2", 'redis.url="none"')
    log = MemoryLog(run=settings.run.name, data_partitions=settings.run.partitions)
    request = StageRequest(stage="learner", slot=2, reward=None, plugin=None, shadow=False)
    context = context_of(log, settings, request=request)
    with pytest.raises(SettingsError, match=r"--slot 2 is no learner rank: learner\.ranks = 2, so they are 0 to 1"):
        build_stage(StageChoice(stage="learner", slot=2), settings, context=context)


def test_a_rank_is_told_apart_by_its_name_and_by_a_label(tmp_path: Path) -> None:
    settings = run_file(tmp_path, "learner.ranks=2")
    log = MemoryLog(run=settings.run.name, data_partitions=settings.run.partitions)
    request = StageRequest(stage="learner", slot=1, reward=None, plugin=None, shadow=False)
    context = context_of(log, settings, request=request)
    assert context.instance.startswith("learner.1-")
    assert context.stage == "learner"
    alone = run_file(tmp_path, "learner.max_ranks=2")
    assert context_of(log, alone, request=replace(request, slot=0)).instance.startswith("learner.0-"), "now and later"
    context.metrics.gauge("step", 3)
    labels = [dict(sample.labels) for family in context.metrics.registry.collect() for sample in family.samples]
    assert [each["rank"] for each in labels] == ["1"]
    assert context.metrics.snapshot() == {"step": 3.0}, "heartbeats carry it under its plain name"


def test_a_process_says_which_slot_and_which_reward_it_is() -> None:
    request = StageRequest(stage="reward", slot=1, reward=None, plugin=None, shadow=False)
    assert labels_of(request, reward="sum") == {"slot": "1", "reward": "sum"}
    assert labels_of(replace(request, stage="rollout"), reward=None) == {"slot": "1"}
