"""The learner's process in `bench schedule`: the real stage with a trainer that takes the workload's time.

    python -m ops.bench.schedule.pupil SETTINGS PLAN

Role: a process of its own, as learners are, so that nobody waits for its computation.
Data in: the run's saved settings, and a plan. Data out: what a learner writes; the board.
Failure: the exit code of the stage.
"""

from __future__ import annotations

import sys
from pathlib import Path

from consumers.learner.setup import LearnerSetup
from consumers.learner.stage import LearnerStage
from ops.bench.schedule.board import Board
from ops.bench.schedule.plan import Plan
from ops.bench.schedule.trainer import TimedTrainer
from ops.bench.schedule.workload import load_workload
from ops.run_file import load_saved
from ops.wiring import open_log
from pipeline.collector import calm_collector
from pipeline.stage import make_context, new_instance, run_stage


def main(settings: str, plan_file: str) -> int:
    """See the module."""
    calm_collector()
    run_file, plan = load_saved(Path(settings)), Plan.read(Path(plan_file))
    alone = run_file.learner.model_copy(update={"ranks": 1, "min_ranks": None, "max_ranks": None})
    trainer = TimedTrainer(
        alone,
        run_file.model,
        board=Board(Path(plan.board)),
        workload=load_workload(plan.workload),
        scale=plan.scale,
        extra_s=plan.extra_s,
    )
    setup = LearnerSetup(
        settings=alone,
        model=run_file.model,
        weights=run_file.weights,
        rewards=run_file.reward_terms,
        lease_s=run_file.redis.lease_s,
        trainer=lambda: trainer,
    )
    context = make_context(open_log(run_file), run=run_file.run, stage="learner", instance=new_instance("learner.0"))
    return int(run_stage(LearnerStage(context, setup), context))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
