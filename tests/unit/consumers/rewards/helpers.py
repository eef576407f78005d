"""Samples, contexts and runs of a reward stage over the memory log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from consumers.rewards.process_pool import ProcessPool
from consumers.rewards.settings import RewardSettings
from consumers.rewards.stage import RewardStage
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.records import Reward, Sample, SamplingParams, StageEvent
from topics.catalog import EVENTS, REWARDS, SAMPLES, Topic
from topics.clock import Deadline
from topics.log import Log, ReaderHooks, ReaderSettings, WriterSettings
from topics.memory import MemoryLog

HERE = "tests.unit.consumers.rewards.plugins"
SILENT = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)


def sample(group: int = 0, member: int = 0, **changes: object) -> Sample:
    """One sample; the completion is `4` for the answer `4` unless changed."""
    values: dict[str, object] = {
        "run": "r",
        "group": group,
        "member": member,
        "attempt": "a",
        "producer": "p",
        "completion_text": "4",
        "answer": "4",
        "sampling": SamplingParams(),
        "seed": 0,
        "started_unix_ms": 0,
        "finished_unix_ms": 0,
    }
    return Sample(**(values | changes))  # type: ignore[arg-type]


def write_samples(log: Log, samples: Iterable[Sample]) -> None:
    """Put samples on the log."""
    writer = log.writer(WriterSettings())
    for one in samples:
        writer.write(SAMPLES, one)
    writer.flush(deadline=Deadline.after(10))
    writer.close(deadline=Deadline.after(10))


def read_all(log: Log, topic: Topic) -> list[object]:
    """All records of a topic."""
    reader = log.reader(ReaderSettings(topics=(topic,)), hooks=SILENT)
    ends = reader.end_positions()
    found: list[object] = []
    deadline = Deadline.after(20)
    while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
        deadline.check(f"the records of {topic.name}")
        found += [envelope.record for envelope in reader.poll(1000, deadline=Deadline.after(0.1))]
    reader.close()
    return found


def rewards_of(log: Log, topic: Topic) -> list[Reward]:
    """All rewards of a topic."""
    return [record for record in read_all(log, topic) if isinstance(record, Reward)]


@dataclass
class Rig:
    """A run on the memory log, and reward stages on it."""

    log: MemoryLog = field(default_factory=lambda: MemoryLog(run="r", data_partitions=2))
    started: list[RewardStage] = field(default_factory=list)

    def context(self) -> StageContext:
        return make_context(self.log, run=RunSettings(name="r", dir=Path("runs"), partitions=2), stage="reward")

    def stage(self, name: str = "math", **settings: object) -> RewardStage:
        """A started stage; its plug-in runs in this process unless told otherwise, as it shares state with the test."""
        values = {"isolation": "thread"} | settings
        stage = RewardStage(self.context(), name=name, settings=RewardSettings.model_validate(values))
        stage.start(deadline=Deadline.after(60))
        self.started.append(stage)
        return stage

    def events(self, name: str) -> list[StageEvent]:
        """Events of a name."""
        found = [record for record in read_all(self.log, EVENTS) if isinstance(record, StageEvent)]
        return [event for event in found if event.name == name]

    def lag(self, group: str = "rlweave.r.reward.math") -> int | None:
        """Records the group has not committed; None when a partition has no commit."""
        lags = [each.lag_records for each in self.log.admin().lag(group, [SAMPLES])]
        return None if None in lags else sum(lag for lag in lags if lag is not None)


def turn_until(stage: RewardStage, done: Callable[[], bool], *, limit_s: float = 60.0) -> None:
    """Turn a stage until a condition holds."""
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "the condition did not come true"
        stage.turn()


def score(rig: Rig, number: int, stage: RewardStage) -> dict[int, Reward]:
    """All rewards, once everything is scored and committed."""
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) >= number and rig.lag() == 0)
    rewards = rewards_of(rig.log, REWARDS)
    assert len(rewards) == number
    return {one.group: one for one in rewards}


def pool_of(stage: RewardStage) -> ProcessPool:
    """The pool of a stage whose plug-in runs in processes of its own."""
    assert stage._scoring is not None
    pool = stage._scoring._pool
    assert isinstance(pool, ProcessPool)
    return pool
