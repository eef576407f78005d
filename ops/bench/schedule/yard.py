"""The process of `bench schedule` in which the learner and the rollout producers of a run live, as threads.

    python -m ops.bench.schedule.yard SETTINGS PLAN

Role: the stages are the real ones; the engines' and the trainer's time is the workload's. Prompts, rewards, scheduler
and peer are processes of their own.
Data in: the run's saved settings, and a plan. Data out: the plan's `out` file, JSON, written at the end.
Failure: exit code 1 when a stage ended by itself; what it said is on stderr.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from consumers.learner.setup import LearnerSetup
from consumers.learner.stage import LearnerStage
from ops.bench.schedule.engine import TimedEngine
from ops.bench.schedule.foreman import Foreman, Hands
from ops.bench.schedule.pool import PoolState
from ops.bench.schedule.trainer import TimedTrainer
from ops.bench.schedule.workload import load_workload
from ops.bench.schedule.world import World
from ops.run_file import RunFile, load_saved
from ops.wiring import open_log
from pipeline.collector import calm_collector
from pipeline.engines.backends import Backend
from pipeline.engines.base import StateTensor
from pipeline.exit_codes import ExitCode
from pipeline.stage import Stage, StageContext, live, make_context, new_instance
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.state import decode_state
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.records import Manifest

_POLL_S = 0.1
_SWITCH_S = 0.0005  # many threads that do little: none is to wait long for the others


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured."""

    workload: str
    num_steps: int  # that count; the run has some more
    scale: float  # real seconds per model second
    rollouts: int
    ranks: int
    slots: int | None
    extra_s: float  # of each step, model seconds
    managed: bool
    out: str

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file."""
        return cls(**orjson.loads(path.read_bytes()))

    def write(self, path: Path) -> None:
        """Write it."""
        path.write_bytes(orjson.dumps(asdict(self)))


class Yard:
    """See the module."""

    def __init__(self, run_file: RunFile, plan: Plan) -> None:
        self._run_file = run_file
        self._plan = plan
        self._world = World(
            load_workload(plan.workload), scale=plan.scale, num_steps=plan.num_steps, managed=plan.managed
        )
        self._trainer = TimedTrainer(
            run_file.learner, run_file.model, world=self._world, ranks=lambda: self._foreman.ranks, extra_s=plan.extra_s
        )
        self._learner_context = self._context("learner", 0)
        pool = PoolState(rollouts=plan.rollouts, ranks=plan.ranks, slots=plan.slots)
        hands = Hands(engine=self._engine, between_steps=lambda: not self._trainer.is_working)
        self._foreman = Foreman(self._learner_context, world=self._world, pool=pool, hands=hands)

    def run(self) -> int:
        """To the end of the run."""
        codes: list[ExitCode] = []
        learner = LearnerStage(self._learner_context, self._learner_setup())
        thread = threading.Thread(target=lambda: codes.append(live(learner, self._learner_context)), name="learner")
        thread.start()
        self._foreman.start()
        while thread.is_alive() and not self._foreman.broken:
            thread.join(_POLL_S)
        self._learner_context.stop.request("an engine is gone")  # changes nothing once it has finished
        thread.join()
        self._foreman.close()
        self._write()
        if self._foreman.broken:
            print(self._foreman.broken, file=sys.stderr)
        return 0 if codes == [ExitCode.OK] and not self._foreman.broken else 1

    def _learner_setup(self) -> LearnerSetup:
        run_file = self._run_file
        return LearnerSetup(
            settings=run_file.learner.model_copy(update={"ranks": 1}),
            model=run_file.model,
            weights=run_file.weights,
            rewards=run_file.required_rewards,
            lease_s=run_file.redis.lease_s,
            trainer=lambda: self._trainer,
        )

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
    return Yard(load_saved(Path(settings)), Plan.read(Path(plan))).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
