"""Each kind of trouble is named, and the ordinary course is not taken for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.live.picture import CommandPicture, RunPicture, Totals
from ops.live.verdict import judge
from tests.unit.ops.live.pictures import NOW_MS, learner, picture, process, prompts, reward, rollout, scheduler

IDLE = {"generating": 0.1, "waiting_for_prompts": 0.9}


def slow_reward() -> RunPicture:
    return picture(learner(0.9), reward(1.0, scored_per_s=40), rollout(IDLE, in_flight=2), lag_records=1_300)


def test_a_slow_reward_is_named_with_its_rate_and_queue() -> None:
    verdict = judge(slow_reward())
    assert verdict.kind == "reward"
    assert "90% of its time for rewards: reward sum scores 40/s; 1,300 samples wait for it (32 s" in verdict.text
    assert "rewards.sum.replicas" in verdict.advice


def test_a_slow_reward_is_named_without_a_scheduler_that_measures_lag() -> None:
    seen = replace(slow_reward(), lag=())
    crew = tuple(each for each in seen.processes if each.stage != "scheduler")
    assert judge(replace(seen, processes=crew)).kind == "reward"


def test_a_batch_that_waits_a_moment_does_not_make_a_reward_slow() -> None:
    seen = picture(learner(0.27, ready=0), reward(0.3), rollout(IDLE, in_flight=5), lag_records=700)
    assert judge(seen).kind == "learner"


def test_a_paused_reward_is_named() -> None:
    verdict = judge(picture(learner(0.9), reward(0.1, breaker=1.0), rollout(IDLE)))
    assert (verdict.kind, "is paused" in verdict.text) == ("reward", True)


def test_slow_rollouts_are_named() -> None:
    verdict = judge(picture(learner(0.7), rollout(in_flight=80)))
    assert verdict.kind == "rollout"
    assert "waits 70% of its time for samples: 1 rollout(s) generate 100% of theirs, 380 samples/s" in verdict.text


def test_parked_trajectories_are_the_environments_fault() -> None:
    verdict = judge(picture(learner(0.7), rollout({"generating": 0.3, "parked": 0.7}, in_flight=80)))
    assert "rollouts wait 70% of theirs for their environment" in verdict.text


@pytest.mark.parametrize("waits", [0.05, 0.8])
def test_late_weights_are_named_whether_the_learner_waits_or_not(waits: float) -> None:
    late = rollout({"generating": 0.4, "waiting_for_weights": 0.6}, behind=4)
    verdict = judge(picture(learner(waits), late, serve_s=6.0))
    assert verdict.kind == "weights"
    assert "from published to served takes 6.0 s, and a step takes 1.3 s" in verdict.text
    assert "4 versions behind" in verdict.text


def test_loads_that_stop_engines_are_named() -> None:
    verdict = judge(picture(learner(0.5), rollout({"generating": 0.6, "swapping": 0.4}, in_flight=80)))
    assert (verdict.kind, "stand still 40%" in verdict.text) == ("weights", True)


def test_a_slow_learner_is_named() -> None:
    verdict = judge(picture(learner(0.01, ready=80), rollout(IDLE)))
    assert verdict.kind == "learner"
    assert "works 99% of its time (a step takes 1.3 s); 80 groups are ready" in verdict.text


def test_a_slow_learner_is_named_though_it_waits_for_the_next_groups_by_turns() -> None:
    verdict = judge(picture(learner(0.27, ready=0), rollout(IDLE, in_flight=5), lag_records=0))
    assert verdict.kind == "learner"
    assert "works 73% of its time" in verdict.text
    assert "at most 96 groups may be open" in verdict.text


def test_a_dry_source_is_named_with_the_command_that_paused_it() -> None:
    seen = picture(learner(0.9), rollout(IDLE, in_flight=1), prompts(0.0, open_groups=3), lag_records=0)
    assert judge(seen).kind == "prompts"
    paused = CommandPicture(at_ms=NOW_MS, target="prompts", kind="rate", reason="reward sum is paused", version="")
    assert judge(replace(seen, commands=(paused,))).text.endswith("last command: reward sum is paused")


@pytest.mark.parametrize(("lag", "kind"), [(1.0, "credit"), (2.0, "weights")])
def test_learner_and_rollouts_that_take_turns_lack_credit(lag: float, kind: str) -> None:
    late = replace(scheduler(), gauges={"publish_lag_versions": lag})
    verdict = judge(picture(learner(0.5), rollout({"generating": 0.4, "waiting_for_prompts": 0.6}, in_flight=5), late))
    assert (verdict.kind, "by turns, as at most 96 groups may be open" in verdict.text) == (kind, True)


def test_the_ordinary_course_is_balanced() -> None:
    assert judge(picture()).kind == "balanced"


def test_a_run_without_a_scheduler_says_so() -> None:
    assert judge(picture(replace(scheduler(), standing="not heard"))).kind == "scheduler"


@pytest.mark.parametrize("stage", ["learner", "rollout", "prompts"])
def test_a_stage_that_is_not_heard_is_named(stage: str) -> None:
    verdict = judge(picture(process(stage, {"generating": 1.0}, standing="not heard")))
    assert (verdict.kind, verdict.text.startswith(f"not heard: {stage}")) == ("missing", True)


def test_a_reward_that_is_not_heard_is_named() -> None:
    verdict = judge(picture(replace(reward(), standing="not heard")))
    assert (verdict.kind, "reward sum" in verdict.text) == ("missing", True)


def test_nobody_starting_and_the_end_are_told_apart() -> None:
    seen = picture()
    nobody = tuple(replace(each, standing="not heard") for each in seen.processes)
    assert judge(replace(seen, processes=nobody)).kind == "nobody"
    assert judge(replace(seen, processes=())).kind == "nobody"
    assert judge(replace(seen, totals=Totals(step=150, sealed=True))).kind == "finished"
    assert judge(replace(seen, share_read=0.3)).kind == "starting"
    assert judge(picture(process("learner", {"cloning": 1.0}))).kind == "starting"
    assert judge(replace(seen, window_s=2.0)).kind == "starting"
