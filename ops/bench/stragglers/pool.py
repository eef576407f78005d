"""Real rollout producers over scripted engines, on a log in memory and in model time.

Role: the machinery of the benchmark: admits prompts, ticks all engines, tells what is complete, publishes versions, and
has the scheduler's own decision about packing taken on what the producers' heartbeats would say.
Invariants: no figure depends on how fast the machine is: a tick is so many tokens for every engine, and clocks are set
by hand; runs differ a little by the order in which prompts of several partitions are taken. Prefills, also those of
what was handed over, cost nothing here, which the report says.
Failure: `RuntimeError` when engines do not come to a version.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from consumers.scheduler.packing import next_pack
from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Packing, Snapshot
from consumers.scheduler.standing import StandingCommands
from ops.bench.stragglers.workload import Workload
from pipeline.engines.backends import Backend
from pipeline.engines.base import GenerationRequest
from pipeline.engines.scripted import ScriptedEngine, scripted_state
from pipeline.settings import ModelSettings, RunSettings, WeightsSettings
from pipeline.stage import StageContext, make_context
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.manifest import build_manifest
from pipeline.weights.state import decode_arrays, encode_state
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.reasons import Result
from schemas.records import (
    Command,
    LineageStarted,
    MemberOutcome,
    Outcome,
    Partial,
    PromptGroup,
    Sample,
    SamplingParams,
    Version,
    birth_version,
)
from topics.catalog import COMMANDS, LEDGER, PARTIALS, PROMPTS, SAMPLES, WEIGHTS, rollout_group
from topics.clock import Deadline, ManualClock
from topics.log import ReaderHooks, ReaderSettings, WriterSettings
from topics.memory import MemoryLog

_RUN = "stragglers"
_LOAD_LIMIT_S = 60.0  # real time
_CALM = 1e6  # s: limits that are not to end
_CONTEXT_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Complete:
    """A group whose samples are all there."""

    group: int
    num_tokens: int
    born: Version


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One rollout producer."""

    engine: ScriptedEngine
    stage: RolloutStage
    context: StageContext
    clock: ManualClock


class Pool:
    """See the module.

    Args:
        folder: of the run.
        hand_over_s: of the producers.
    """

    def __init__(self, workload: Workload, folder: Path, *, num_engines: int, hand_over_s: float = _CALM) -> None:
        self.workload = workload
        self.now_s = 0.0
        self.workers: list[Worker] = []
        self.complete: dict[int, Complete] = {}
        self.num_moved_tokens = 0  # of completions that went on elsewhere: prefilled again there
        self.num_handed_over = 0
        self._hand_over_s = hand_over_s
        fields = {
            "name": _RUN,
            "dir": folder,
            "partitions": workload.groups_per_step,
            "groups_per_step": workload.groups_per_step,
            "group_size": workload.group_size,
            "max_staleness": 2,
        }
        self._run = RunSettings.model_validate(fields)
        self._log = MemoryLog(run=_RUN, data_partitions=self._run.partitions)
        self._store = ChunkStore(self._run.folder / "weights" / "engines", max_bytes=2**30)
        self._writer = self._log.writer(WriterSettings())
        self._reader = self._log.reader(
            ReaderSettings(topics=(SAMPLES, PARTIALS)), hooks=ReaderHooks(dead_letter=_ignore, lost=_ignore)
        )
        self._samples: dict[tuple[int, str], list[Sample]] = defaultdict(list)
        self._commands = StandingCommands(run=_RUN)
        self._num_admitted, self._num_workers, self._seq = 0, 0, 0
        self._begin()
        for _ in range(num_engines):
            self.add()

    def add(self) -> Worker:
        """One producer more."""
        clock = ManualClock(now_s=self.now_s)
        context = make_context(
            self._log, run=self._run, stage="rollout", clock=clock, instance=f"rollout-{self._num_workers}"
        )
        engine = ScriptedEngine(
            max_concurrent_sequences=self.workload.sequences_per_engine,
            context_tokens=_CONTEXT_TOKENS,
            tokens_per_step=0,
            length=self._length,
        )
        settings = RolloutSettings(
            engine="scripted", hand_over_s=self._hand_over_s, scheduler_silence_s=_CALM, stuck_after_s=_CALM
        )
        setup = RolloutSetup(
            rollout=settings,
            model=ModelSettings(path=Path("none")),
            weights=WeightsSettings(),
            slot=self._num_workers,
            backend=Backend(engine=engine, decode=decode_arrays),
        )
        stage = RolloutStage(context, setup)
        stage.start(deadline=Deadline.after(_LOAD_LIMIT_S))
        self._num_workers += 1
        worker = Worker(engine=engine, stage=stage, context=context, clock=clock)
        self.workers.append(worker)
        return worker

    def remove(self, worker: Worker) -> None:
        """A producer ends."""
        self.workers.remove(worker)
        worker.stage.stop(deadline=Deadline.after(_LOAD_LIMIT_S))

    def close(self) -> None:
        """All end."""
        for worker in list(self.workers):
            self.remove(worker)

    def admit(self, num_groups: int) -> None:
        """Write prompts."""
        for group in range(self._num_admitted, self._num_admitted + num_groups):
            self._writer.write(PROMPTS, self._prompt(group))
        self._num_admitted += num_groups

    def tick(self) -> None:
        """So many tokens for every sequence."""
        for worker in self.workers:
            worker.engine.tokens_per_step = self.workload.tokens_per_tick
            self._turn(worker)
            worker.engine.tokens_per_step = 0
        self.now_s += self.workload.tick_s
        self._look()

    def publish(self, step: int, *, trained: list[int]) -> None:
        """A version, and the outcomes of the groups it was made of; returns when all engines serve it."""
        version = Version(lineage=1, step=step)
        state = encode_state(scripted_state(step), ties={}, wire_dtype=None, store=self._store)
        for group in trained:
            self._writer.write(LEDGER, self._outcome(group, step=step))
            self.complete.pop(group, None)
        self._writer.write(
            WEIGHTS, build_manifest(state, run=_RUN, version=version, seeds=("http://127.0.0.1:9",), created_unix_ms=0)
        )
        self._command(kind="publish", version=version)
        self.settle(version)

    def settle(self, version: Version) -> None:
        """Let all engines load what was published; no model time goes by."""
        deadline = Deadline.after(_LOAD_LIMIT_S)
        while any(worker.engine.version != version for worker in self.workers):
            deadline.check(f"all engines to serve {version}")
            for worker in self.workers:
                self._turn(worker)
            time.sleep(0.001)  # fetches have threads of their own

    def pack(self) -> Packing | None:
        """Have the scheduler look, and write what it commands."""
        below = self.workload.pack_below
        if sum(worker.engine.num_running for worker in self.workers) >= below * self.num_slots:
            return None  # as it would say itself, at more cost
        settings = SchedulerSettings(pack_below=below)
        step = next_pack(self._snapshot(), settings)
        if step is None:
            return None
        draft = CommandDraft(target="rollout", kind="pack", pack=step.packing, reason=step.reason, assumed=step.assumed)
        self._writer.write(COMMANDS, self._commands.issue(draft, unix_ms=0))
        self._commands.issued(draft, now_s=self.now_s)
        return step.packing

    @property
    def num_slots(self) -> int:
        """Sequences that all engines hold."""
        return len(self.workers) * self.workload.sequences_per_engine

    def empty(self) -> list[Worker]:
        """Producers with nothing to generate."""
        return [worker for worker in self.workers if worker.engine.num_running == 0]

    def _turn(self, worker: Worker) -> None:
        worker.clock.now_s = self.now_s  # an idle turn waits, and its clock alone has moved on
        worker.stage.turn()

    def _length(self, request: GenerationRequest) -> int:
        return self.workload.length(request.seed)

    def _snapshot(self) -> Snapshot:
        seen = tuple(
            InstanceSeen(
                stage="rollout",
                instance=worker.context.instance,
                phase="generating",
                phase_since_s=self.now_s,
                heard_s=self.now_s,
                seq=1,
                gauges=worker.context.metrics.snapshot(),
            )
            for worker in self.workers
        )
        group = rollout_group(_RUN)
        lags = [each.lag_records for each in self._log.admin().lag(group, [PROMPTS])]
        lag = None if any(each is None for each in lags) else sum(each for each in lags if each is not None)
        return Snapshot(
            now_s=self.now_s,
            observed_s=_CALM,
            instances=seen,
            lag={(group, PROMPTS.name): lag},
            standing=self._commands.standing,
        )

    def _look(self) -> None:
        for envelope in self._reader.poll(100_000, deadline=Deadline.after(0.0)):
            record = envelope.record
            if isinstance(record, Partial) and not record.written:
                self.num_handed_over += 1
                self.num_moved_tokens += sum(
                    len(member.tokens) // 4 for member in record.members if not member.finish_reason
                )
            elif isinstance(record, Sample):
                self._add(record)

    def _add(self, sample: Sample) -> None:
        found = self._samples[sample.group, sample.attempt]
        found.append(sample)
        if len(found) == self.workload.group_size:
            runs = tuple(run for each in found for run in each.version_runs)
            self.complete[sample.group] = Complete(
                group=sample.group, num_tokens=sum(len(each.loss_mask) for each in found), born=birth_version(runs)
            )
            del self._samples[sample.group, sample.attempt]

    def _begin(self) -> None:
        for partition in range(self._run.partitions):
            started = LineageStarted(
                run=_RUN, lineage=1, parent=0, branch_step=0, seq=self._next(), holder="learner", started_unix_ms=0
            )
            self._writer.write(LEDGER, started, partition=partition)

    def _command(self, *, kind: str, version: Version) -> None:
        command = Command(
            run=_RUN,
            target="rollout",
            kind=kind,
            epoch=self._commands.epoch,
            seq=self._next(),
            reason="of the benchmark",
            version=version,
            issued_unix_ms=0,
        )
        self._writer.write(COMMANDS, command)

    def _prompt(self, group: int) -> PromptGroup:
        return PromptGroup(
            run=_RUN,
            group=group,
            group_size=self.workload.group_size,
            text="?",
            sampling=SamplingParams(max_tokens=self.workload.max_tokens),
            seed=group * self.workload.group_size,
            source="stragglers",
            source_index=group,
            epoch=0,
            created_unix_ms=0,
        )

    def _outcome(self, group: int, *, step: int) -> Outcome:
        return Outcome(
            run=_RUN,
            group=group,
            lineage=1,
            step=step,
            seq=self._next(),
            result=Result.TRAINED,
            members=(MemberOutcome(member=0, result=Result.TRAINED),),
            closed_unix_ms=0,
        )

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1


def _ignore(_: object) -> None:
    """Nothing is lost in memory."""


@contextmanager
def opened(workload: Workload, folder: Path, *, num_engines: int, hand_over_s: float = _CALM) -> Iterator[Pool]:
    """A pool whose engines serve version 1.0."""
    pool = Pool(workload, folder, num_engines=num_engines, hand_over_s=hand_over_s)
    try:
        pool.publish(0, trained=[])
        yield pool
    finally:
        pool.close()
