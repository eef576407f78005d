"""A learner stage on a real broker, and the hand that writes the other stages' records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from consumers.learner import checkpoint
from consumers.learner.ranks.follow import FollowerStage
from consumers.learner.settings import LearnerSettings
from consumers.learner.setup import LearnerSetup
from consumers.learner.stage import LearnerStage
from pipeline.history import LedgerView
from pipeline.redis_client import RedisClient
from pipeline.settings import ModelSettings, RunSettings, WeightsSettings
from pipeline.stage import StageContext, make_context, new_instance
from schemas.codec import encode, key_of
from schemas.records import (
    LedgerSealed,
    LineageStarted,
    Manifest,
    Outcome,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    StageEvent,
    Version,
)
from tests.unit.consumers.learner.material import prompt, reward, sample
from topics.catalog import EVENTS, LEDGER, PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, WEIGHTS, Topic
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.log import ReaderHooks, ReaderSettings, Writer, WriterSettings

SIZE = 8
HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
TOPIC_OF: dict[type, Topic] = {
    PromptGroup: PROMPTS,
    Sample: SAMPLES,
    Reward: REWARDS,
    ReferenceScore: REFERENCE_SCORES,
}


@dataclass
class World:
    """One run: its log, its learners, and the hand that writes the other stages' records."""

    log: KafkaLog
    folder: Path
    model: Path
    max_steps: int = 4
    every_steps: int = 1
    heartbeat_s: float = 5.0
    ranks: int = 1
    collective_limit_s: float = 20.0
    redis: RedisClient | None = None
    lease_s: float = 1.0
    first_group: int = 0
    seqs: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.writer: Writer = self.log.writer(WriterSettings(linger_ms=0.0))
        store = self.folder / self.log.run / "weights" / "learner"
        store.mkdir(parents=True)
        (store.parent / "peer.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')

    def learner(self) -> tuple[LearnerStage, StageContext]:
        """A learner, or rank 0 of one, that has not started."""
        context = self._context(0)
        return LearnerStage(context, self._setup()), context

    def follower(self, rank: int) -> tuple[FollowerStage, StageContext]:
        """Another rank of a learner, which has not started."""
        context = self._context(rank)
        return FollowerStage(context, self._setup(), rank=rank), context

    def _context(self, rank: int) -> StageContext:
        run = RunSettings(
            name=self.log.run,
            dir=self.folder,
            partitions=self.log.data_partitions,
            groups_per_step=4,
            group_size=SIZE,
            max_steps=self.max_steps,
            max_staleness=100,
            group_deadline_s=1.0,
            heartbeat_s=self.heartbeat_s,
        )
        return make_context(self.log, run=run, stage="learner", instance=new_instance(f"learner.{rank}"))

    def _setup(self) -> LearnerSetup:
        settings = LearnerSettings(
            outcome_flush_s=0.1,
            ranks=self.ranks,
            collective_limit_s=self.collective_limit_s,
            compare_every_steps=1,
            first_group=self.first_group,
        )
        settings = settings.model_copy(
            update={"checkpoint": settings.checkpoint.model_copy(update={"every_steps": self.every_steps})}
        )
        return LearnerSetup(
            settings=settings,
            model=ModelSettings(path=self.model),
            weights=WeightsSettings(),
            rewards={"match": 1.0},
            lease_s=self.lease_s,
            redis=self.redis,
        )

    def write(self, *records: Record) -> None:
        for record in records:
            own = replace(record, run=self.log.run)
            self.writer.write(TOPIC_OF[type(record)], own)
        self.writer.flush(deadline=Deadline.after(60))

    def misplace(self, topic: Topic, record: Record, *, partition: int) -> None:
        """Write a record where it does not belong."""
        value = encode(replace(record, run=self.log.run))
        self.writer.write_raw(topic, key=key_of(record), value=value, partition=partition)
        self.writer.flush(deadline=Deadline.after(60))

    def group(self, number: int, *, missing: int = 0, born: Version) -> None:
        """A group with `missing` members that never arrive."""
        self.write(prompt(number, size=SIZE))
        for member in range(SIZE - missing):
            self.write(sample(number, member, born=born), reward(number, member, value=float(member % 2)))

    def say(self, stage: str, phase: str, **gauges: float) -> None:
        """A heartbeat of another stage."""
        event = StageEvent(
            run=self.log.run,
            stage=stage,
            instance=f"{stage}-by-hand",
            kind="heartbeat",
            name="heartbeat",
            seq=self.seqs[stage],
            gauges=gauges,
            details={"phase": phase},
            monotonic_s=0.0,
            unix_ms=0,
        )
        self.seqs[stage] += 1
        self.writer.write(EVENTS, event)
        self.writer.flush(deadline=Deadline.after(60))

    def records(self, topic: Topic) -> list[tuple[int, Record]]:
        """(partition, record) of a topic as it is now."""
        reader = self.log.reader(ReaderSettings(topics=(topic,)), hooks=HOOKS)
        found: list[tuple[int, Record]] = []
        ends = reader.end_positions()
        deadline = Deadline.after(60)
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            deadline.check(f"{topic.name} to its end")
            polled = reader.poll(1000, deadline=Deadline.after(0.2))
            found += [(each.partition, each.record) for each in polled if each.record is not None]
        reader.close()
        return found

    def ledger(self) -> tuple[LedgerView, list[Outcome]]:
        """The ledger folded, and its surviving outcomes."""
        view, outcomes = LedgerView(self.log.data_partitions), []
        for partition, record in self.records(LEDGER):
            assert isinstance(record, Outcome | LineageStarted | LedgerSealed)
            view.add(partition, record)
            if isinstance(record, Outcome):
                outcomes.append(record)
        return view, [each for each in outcomes if view.lineages.survives(each.lineage, each.step)]

    def manifests(self) -> list[Manifest]:
        return [record for _, record in self.records(WEIGHTS) if isinstance(record, Manifest)]

    def newest(self) -> checkpoint.Snapshot:
        found = checkpoint.newest_valid(self.folder / self.log.run / "checkpoints", survives=lambda _: True)
        assert found is not None
        return found.snapshot


def start(stage: LearnerStage) -> None:
    stage.start(deadline=Deadline.after(60))


def turn_until(
    stage: LearnerStage, condition: Callable[[], bool], *, what: str, each: Callable[[], None] = lambda: None
) -> None:
    deadline = Deadline.after(120)
    while not condition():
        deadline.check(what)
        each()
        stage.turn()


def step_of(context: StageContext) -> float:
    return context.metrics.snapshot().get("step", 0.0)


def alive(world: World, *, num_groups: int, lineage: int) -> Callable[[], None]:
    """What the other stages say meanwhile, every half second."""
    clock, said_s = SystemClock(), [0.0]

    def say() -> None:
        if clock.monotonic() - said_s[0] > 0.5:
            said_s[0] = clock.monotonic()
            world.say("rollout", "generating")
            world.say("prompts", "finished", groups_admitted=num_groups, version_lineage=lineage)

    return say
