"""The rest of the run, as producers see it: a learner and a scheduler that write what a test tells them to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.engines.scripted import scripted_state
from pipeline.settings import RunSettings
from pipeline.stage import Stage, StageContext, make_context
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.manifest import build_manifest
from pipeline.weights.state import encode_state
from schemas.reasons import Result
from schemas.records import (
    Command,
    LineageStarted,
    Manifest,
    MemberOutcome,
    Outcome,
    PromptGroup,
    Record,
    SamplingParams,
    StageEvent,
    Version,
)
from topics.catalog import COMMANDS, EVENTS, LEDGER, PROMPTS, WEIGHTS, Topic
from topics.clock import Clock, Deadline
from topics.log import Log, ReaderHooks, ReaderSettings, WriterSettings

START_S = 60.0
FAR_GROUP = 1_000_000  # groups that no test asks for


@dataclass
class World:
    """One run over a log."""

    log: Log
    folder: Path
    clock: Clock
    fields: Mapping[str, object] = field(default_factory=dict)  # of RunSettings
    seeds: tuple[str, ...] = ()
    seq: int = 0

    def __post_init__(self) -> None:
        self.run = RunSettings.model_validate({"name": self.log.run, "dir": self.folder, **self.fields})
        self.store = ChunkStore(self.run.folder / "weights" / "learner", max_bytes=2**30)
        self.writer = self.log.writer(WriterSettings(transactional_id=f"rlweave.{self.log.run}.learner"))
        self.plain = self.log.writer(WriterSettings())

    def context(self, stage: str, *, log: Log | None = None, instance: str | None = None) -> StageContext:
        return make_context(
            self.log if log is None else log, run=self.run, stage=stage, clock=self.clock, instance=instance
        )

    def write(self, *records: tuple[Topic, Record, int | None], backed: bool = True) -> None:
        """One transaction. With a manifest goes an outcome that shows its step as trained, as the learner's do.

        Args:
            backed: False: without, as somebody who forges a manifest.
        """
        steps = [record.version for _, record, _ in records if isinstance(record, Manifest) and record.version.step]
        trained = [self._trained(version) for version in steps if backed]
        with self.writer.transaction(deadline=Deadline.after(START_S)):
            for topic, record, partition in (*trained, *records):
                self.writer.write(topic, record, partition=partition)

    def _trained(self, version: Version) -> tuple[Topic, Record, int | None]:
        group = FAR_GROUP + version.lineage * 10_000 + version.step
        record = self.outcome(group, lineage=version.lineage, step=version.step, result=Result.TRAINED)
        return (LEDGER, record, None)

    def lineage(self, lineage: int, *, parent: int = 0, branch_step: int = 0) -> None:
        record = LineageStarted(
            run=self.log.run,
            lineage=lineage,
            parent=parent,
            branch_step=branch_step,
            seq=self._next(),
            holder="learner",
            started_unix_ms=0,
        )
        self.write(*((LEDGER, record, partition) for partition in range(self.log.data_partitions)))

    def publish(self, lineage: int, step: int, *, command: bool = False, backed: bool = True) -> Manifest:
        """A version whose weights say `step`."""
        state = encode_state(scripted_state(step), ties={}, wire_dtype=None, store=self.store)
        version = Version(lineage=lineage, step=step)
        manifest = build_manifest(state, run=self.log.run, version=version, seeds=self.seeds, created_unix_ms=0)
        self.write((WEIGHTS, manifest, None), backed=backed)
        if command:
            self.command("publish", version=version)
        return manifest

    def close(self, *groups: int, lineage: int = 1, step: int = 1, result: str = Result.TRAINED) -> None:
        self.write(
            *((LEDGER, self.outcome(group, lineage=lineage, step=step, result=result), None) for group in groups)
        )

    def outcome(self, group: int, *, lineage: int, step: int, result: str) -> Outcome:
        return Outcome(
            run=self.log.run,
            group=group,
            lineage=lineage,
            step=step,
            seq=self._next(),
            result=result,
            members=(MemberOutcome(member=0, result=result),),
            closed_unix_ms=0,
        )

    def command(
        self,
        kind: str,
        *,
        target: str = "rollout",
        epoch: int = 1,
        version: Version | None = None,
        **fields: Any,
    ) -> None:
        record = Command(
            run=self.log.run,
            target=target,
            kind=kind,
            epoch=epoch,
            seq=self._next(),
            reason="test",
            version=version,
            issued_unix_ms=0,
            **fields,
        )
        self.plain.write(COMMANDS, record)
        self.plain.flush(deadline=Deadline.after(START_S))

    def prompts(self, *groups: int, max_tokens: int = 4, text: str = "4 + 3 =") -> None:
        for group in groups:
            self.plain.write(PROMPTS, self.prompt(group, max_tokens=max_tokens, text=text))
        self.plain.flush(deadline=Deadline.after(START_S))

    def prompt(self, group: int, *, max_tokens: int = 4, text: str = "4 + 3 =") -> PromptGroup:
        return PromptGroup(
            run=self.log.run,
            group=group,
            group_size=self.run.group_size,
            text=text,
            sampling=SamplingParams(max_tokens=max_tokens),
            seed=1000 * group,
            answer="7",
            metadata={"level": "1"},
            source="test",
            source_index=group,
            epoch=0,
            created_unix_ms=0,
        )

    def read(self, topic: Topic) -> list[Record]:
        """Everything readable on a topic."""
        return records_of(self.log, topic)

    def _next(self) -> int:
        self.seq += 1
        return self.seq - 1


def records_of(log: Log, topic: Topic) -> list[Record]:
    """Everything readable on a topic, per partition in order."""
    hooks = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
    reader = log.reader(ReaderSettings(topics=(topic,)), hooks=hooks)
    try:
        ends = reader.end_positions()
        found: list[Record] = []
        deadline = Deadline.after(START_S)
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            deadline.check(f"the records of {topic.name}")
            envelopes = reader.poll(1000, deadline=Deadline.after(0.2))
            found += [envelope.record for envelope in envelopes if envelope.record is not None]
        return found
    finally:
        reader.close()


def started(stage: Stage) -> None:
    """Start a stage."""
    stage.start(deadline=Deadline.after(START_S))


def until(stage: Stage, condition: Callable[[], bool], *, limit_s: float = 60.0, what: str = "the condition") -> None:
    """Turn the stage until the condition holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"{what} did not come about in {limit_s} s")
        stage.turn()


def events_of(log: Log, name: str) -> list[dict[str, str]]:
    """Details of all notices of a name."""
    found = [event for event in records_of(log, EVENTS) if isinstance(event, StageEvent)]
    return [dict(event.details) for event in found if event.name == name]
