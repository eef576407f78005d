"""A run on the memory log with a scheduler: what the tests of the stage say to it and read of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from consumers.rewards.stage import RewardStage
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.stage import SchedulerStage
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.records import (
    ChunkRef,
    Command,
    LineageStarted,
    Manifest,
    Outcome,
    StageEvent,
    TensorEntry,
    Version,
)
from tests.unit.consumers.rewards.helpers import read_all
from topics.catalog import COMMANDS, EVENTS, LEDGER, WEIGHTS
from topics.clock import Clock, Deadline, SystemClock
from topics.log import WriterSettings
from topics.memory import MemoryLog

FAST = {"heartbeat_s": 0.2, "interval_s": 0.1, "settle_s": 0.3, "lag_interval_s": 0.1}


def manifest(lineage: int, step: int) -> Manifest:
    return Manifest(
        run="r",
        version=Version(lineage=lineage, step=step),
        tensors=(TensorEntry(name="w", dtype="F32", shape=(1,), num_bytes=4),),
        chunks=(ChunkRef(digest="0" * 64, num_bytes=4),),
        state_digest="0" * 64,
        num_bytes=4,
        seeds=(),
        created_unix_ms=0,
    )


def step_records(
    lineage: int, step: int, *, partitions: int, run: str = "r"
) -> list[tuple[int, LineageStarted | Outcome]]:
    """Ledger records that show a step as trained, with the beginning of its lineage."""
    parent = lineage - 1
    started = LineageStarted(
        run=run, lineage=lineage, parent=parent, branch_step=step, seq=0, holder="h", started_unix_ms=0
    )
    outcome = Outcome(
        run=run, group=0, lineage=lineage, step=step, seq=0, result="trained", members=(), closed_unix_ms=0
    )
    return [*((partition, started) for partition in range(partitions)), *([(0, outcome)] if step else [])]


@dataclass
class Rig:
    """A run on the memory log."""

    log: MemoryLog = field(default_factory=lambda: MemoryLog(run="r", data_partitions=2))
    clock: Clock = field(default_factory=SystemClock)
    started: list[SchedulerStage | RewardStage] = field(default_factory=list)

    def context(self, stage: str = "scheduler") -> StageContext:
        run = RunSettings(name="r", partitions=2, heartbeat_s=0.1)
        return make_context(self.log, run=run, stage=stage, clock=self.clock)

    def scheduler(self, **settings: float) -> SchedulerStage:
        stage = SchedulerStage(self.context(), settings=SchedulerSettings.model_validate(FAST | settings))
        stage.start(deadline=Deadline.after(60))
        self.started.append(stage)
        return stage

    def stage_version(self, lineage: int, step: int, *, backed: bool = True) -> None:
        """As the learner does; not `backed`: as somebody who forges a manifest."""
        writer = self.log.writer(WriterSettings())
        if backed:
            for partition, record in step_records(lineage, step, partitions=2):
                writer.write(LEDGER, record, partition=partition)
        writer.write(WEIGHTS, manifest(lineage, step))
        writer.flush(deadline=Deadline.after(5))

    def engine(self, name: str) -> StageContext:
        """What the scheduler hears of a rollout producer."""
        run = RunSettings(name="r", partitions=2)
        return make_context(self.log, run=run, stage="rollout", instance=name)

    def swap(self, engine: StageContext, *, step: int) -> None:
        engine.events.version = Version(lineage=1, step=step)
        engine.events.notice("swapped")

    def command(self, kind: str, *, epoch: int = 1, version: Version | None = None) -> None:
        """A command of somebody else."""
        target = "rollout" if kind == "publish" else "all"
        command = Command(
            run="r", target=target, kind=kind, epoch=epoch, seq=0, reason="x", version=version, issued_unix_ms=0
        )
        writer = self.log.writer(WriterSettings())
        writer.write(COMMANDS, command)
        writer.flush(deadline=Deadline.after(5))

    def notices(self, name: str) -> list[StageEvent]:
        found = [record for record in read_all(self.log, EVENTS) if isinstance(record, StageEvent)]
        return [event for event in found if event.kind == "notice" and event.name == name]

    def waves(self) -> list[str]:
        """`1.2 ab|cd` per publish command: version, waves that may load | those that may not."""
        found = []
        for command in self.commands("publish"):
            parts = ["".join(names) for names in command.waves]
            released, later = parts[: command.wave + 1], parts[command.wave + 1 :]
            found.append(f"{command.version} {' '.join(released)}|{' '.join(later)}")
        return found

    def commands(self, kind: str) -> list[Command]:
        found = [record for record in read_all(self.log, COMMANDS) if isinstance(record, Command)]
        return [command for command in found if command.kind == kind]

    def published(self) -> list[str]:
        return [str(command.version) for command in self.commands("publish")]


def turn_until(stage: SchedulerStage, done: Callable[[], bool], *, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "the condition did not come true"
        stage.turn()


def engines_heard(scheduler: SchedulerStage) -> list[str]:
    now_s = scheduler._context.clock.monotonic()
    snapshot = scheduler._signals.snapshot(now_s=now_s, lag={}, standing=scheduler._commands.standing)
    return list(snapshot.served())
