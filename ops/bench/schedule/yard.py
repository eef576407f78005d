"""The process of `bench schedule` in which the rollout producers of a run live, as threads; it starts the learner.

    python -m ops.bench.schedule.yard SETTINGS PLAN

Role: the stages are the real ones; the engines' and the trainer's time is the workload's. Learner, prompts, rewards,
scheduler and peer are processes of their own.
Data in: the run's saved settings, and a plan. Data out: the plan's `out` file, JSON, written at the end.
Failure: exit code 1 when a stage ended by itself; what it said is on stderr.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import orjson

from ops.bench.schedule.board import Board
from ops.bench.schedule.engine import TimedEngine
from ops.bench.schedule.foreman import Foreman
from ops.bench.schedule.plan import Plan
from ops.bench.schedule.pool import PoolState
from ops.bench.schedule.workload import load_workload
from ops.bench.schedule.world import World
from ops.run_file import RunFile, load_saved
from ops.wiring import open_log
from pipeline.collector import calm_collector
from pipeline.engines.backends import Backend
from pipeline.engines.base import StateTensor
from pipeline.stage import Stage, StageContext, make_context, new_instance
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.state import decode_state
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.records import Manifest

_POLL_S = 0.1
_SWITCH_S = 0.0005  # many threads that do little: none is to wait long for the others


class Yard:
    """See the module."""

    def __init__(self, run_file: RunFile, plan: Plan) -> None:
        self._run_file = run_file
        self._plan = plan
        self._world = World(
            load_workload(plan.workload),
            board=Board(Path(plan.board)),
            scale=plan.scale,
            num_steps=plan.num_steps,
            managed=plan.managed,
        )
        pool = PoolState(rollouts=plan.rollouts, ranks=plan.ranks, slots=plan.slots)
        self._foreman = Foreman(self._context("supervisor", 0), world=self._world, pool=pool, hire=self._engine)

    def run(self, *files: str) -> int:
        """To the end of the run; `files` are those that the learner is told."""
        with subprocess.Popen((sys.executable, "-m", "ops.bench.schedule.pupil", *files)) as learner:
            try:
                self._foreman.start()
                while learner.poll() is None and not self._foreman.broken:
                    time.sleep(_POLL_S)
            finally:
                learner.terminate()  # changes nothing once it has finished
                code = learner.wait()
        self._foreman.close()
        self._write()
        if self._foreman.broken:
            print(self._foreman.broken, file=sys.stderr)
        return 0 if code == 0 and not self._foreman.broken else 1

    def _engine(self, number: int, ready_s: float) -> tuple[Stage, StageContext]:
        run_file, context = self._run_file, self._context("rollout", number)
        engine = TimedEngine(self._world, name=context.instance, ready_s=ready_s)
        setup = RolloutSetup(
            rollout=run_file.rollout,
            model=run_file.model,
            weights=run_file.weights,
            slot=number,
            backend=Backend(engine=engine, decode=self._decode),
        )
        return RolloutStage(context, setup), context

    def _decode(self, manifest: Manifest, store: ChunkStore) -> dict[str, StateTensor]:
        self._world.fetch(manifest.version)
        return dict(decode_state(manifest, store))

    def _context(self, stage: str, number: int) -> StageContext:
        log = open_log(self._run_file)
        return make_context(log, run=self._run_file.run, stage=stage, instance=new_instance(f"{stage}.{number}"))

    def _write(self) -> None:
        world = self._world
        found = {
            "marks": [asdict(mark) for mark in world.marks],
            "publish_alone_s": world.publishes_s[False],
            "publish_beside_s": world.publishes_s[True],
            "num_commands": self._foreman.num_commands,
            "notes": self._foreman.notes,
        }
        Path(self._plan.out).write_bytes(orjson.dumps(found))


def main(settings: str, plan: str) -> int:
    """See the module."""
    calm_collector()
    sys.setswitchinterval(_SWITCH_S)
    return Yard(load_saved(Path(settings)), Plan.read(Path(plan))).run(settings, plan)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
