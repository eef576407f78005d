"""The scheduler sees who is behind and the supervisor starts more of it: decisions, processes and books of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from tests.e2e.support import Value, check_books, small_run

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STEPS = 12


def test_a_reward_that_is_behind_gets_more_processes(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """One scores 4 samples a second, 16 make a step, and everybody else is faster, on a busy machine too."""
    changes: dict[str, Value] = {
        "run.max_steps": STEPS,
        "rewards.sum.plugin": "ops.chaos.scorer:PacedScorer",
        "rewards.sum.options.seconds": 0.25,
        "rewards.sum.num_workers": 1,
        "rewards.sum.max_replicas": 3,
        "scheduler.policy": "reactive",
        "scheduler.rate_window_s": 4.0,
        "scheduler.settle_s": 1.0,
        "scheduler.lag_interval_s": 1.0,
        "scheduler.scale_up_cool_down_s": 4.0,
        "scheduler.reward_lag_s": 1.0,
        "learner.checkpoint.every_steps": STEPS,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        assert process.wait(180) == 0, run.outputs()
        seen = check_books(run)
    commanded = [dict(each.details) for each in seen.events("scheduler", name="commanded")]
    scales = [details for details in commanded if details["kind"] == "scale"]
    assert scales, commanded
    assert (scales[0]["target"], scales[0]["replicas"]) == ("reward.sum", "2")
    assert "s behind, scoring" in scales[0]["reason"]
    done = [dict(each.details) for each in seen.events("supervisor", name="scaled")]
    assert done[0] == {"target": "reward.sum", "asked": "2", "replicas": "2"}
    scorers = {each.instance for each in seen.events("reward", kind="phase_began") if each.name == "scoring"}
    assert len(scorers) >= 2
    assert seen.events("learner", name="step")[-1].gauges["step"] == STEPS
