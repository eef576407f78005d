"""A learner rank of the benchmark: the real one, whose steps take a set time, as on a device of its own.

    python -m ops.bench.elastic.rank STEP_S run learner --config FILE [--slot RANK] [--set KEY=VALUE ...]

Role: stands where `rlweave` stands in the command of a learner, so that a step costs time and no processor.
Data in: STEP_S, rank-seconds of a step; the arguments of `rlweave run learner`. Data out: exit codes of the stage.
Invariants: the step itself is real, gradients are summed over real ranks; what is left of the time is slept.
Failure: as the learner.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from consumers.learner.batch import Batch
from consumers.learner.step_stats import StepStats
from consumers.learner.trainer import Meanwhile, Trainer
from ops.run_file import RunFile
from ops.run_stage import StageRequest, run_one
from ops.wiring import StageChoice, build_stage
from pipeline.stage import Stage, StageContext


class PacedTrainer(Trainer):
    """See the module."""

    step_s = 0.0  # rank-seconds of a step

    def step(self, batch: Batch, *, meanwhile: Meanwhile | None = None) -> StepStats:
        """See `Trainer.step`."""
        end_s = time.monotonic() + self.step_s / (1 if self.team is None else self.team.num_ranks)
        stats = super().step(batch, meanwhile=meanwhile)
        time.sleep(max(0.0, end_s - time.monotonic()))
        return stats


def main(arguments: Sequence[str]) -> int:
    """Run the rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step_s", type=float)
    parser.add_argument("run")
    parser.add_argument("stage")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args(arguments)

    def build(choice: StageChoice, run_file: RunFile, *, context: StageContext) -> Stage:
        def trainer() -> Trainer:
            made = PacedTrainer(run_file.learner, run_file.model, seed=run_file.run.seed)
            made.step_s = given.step_s
            return made

        return build_stage(choice, run_file, context=context, trainer=trainer)

    request = StageRequest(stage=given.stage, slot=given.slot, reward=None, plugin=None, shadow=False)
    return run_one(request, config=given.config, overrides=given.overrides, state_dir=Path(".rlweave"), build=build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
