"""The learner's life: claim the run, restore, begin a lineage; then the loop (`consumers.learner.loop`).

    prompts --.                         .--> ledger   } one transaction
    samples ---> assembler -> batch -> trainer -> weights } per step
    rewards --'                         '--> checkpoint (after it)

Role: stage `learner`; reads prompts, samples, rewards and events, writes ledger and weights.
Start: (1) take the run's lease; (2) fence the predecessor and read the ledger; (3) restore the newest whole checkpoint;
(4) begin a lineage that branches from it.
Invariants: (1) refuses a second learner early and kindly; (2) makes sure of it, as nothing a fenced learner tries later
is written (promise 5).
Failure: `LeaseHeld` when another learner lives; any error of a transaction ends the process, which restarts from its
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from consumers.learner.assembler import Assembler
from consumers.learner.assembler_settings import AssemblerSettings
from consumers.learner.data import OneProcess
from consumers.learner.holder import RunHolder
from consumers.learner.intake import Intake
from consumers.learner.ledger import Ledger
from consumers.learner.loop import LearnerLoop, LoopParts
from consumers.learner.publisher import Publisher
from consumers.learner.recovery import Recovered, recover
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import Trainer
from consumers.learner.upstream import UpstreamWatch
from pipeline.redis_client import RedisClient
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.stage import StageContext
from pipeline.weights.chunks import ChunkStore
from topics.clock import Deadline
from topics.log import WriterSettings


@dataclass(frozen=True, kw_only=True)
class LearnerSetup:
    """What the learner is made from."""

    settings: LearnerSettings
    model: ModelSettings
    weights: WeightsSettings
    rewards: Mapping[str, float]  # weight of every required reward
    lease_s: float
    redis: RedisClient | None = None


class LearnerStage:
    """See the module. Constructing it does no I/O."""

    def __init__(self, context: StageContext, setup: LearnerSetup) -> None:
        self._context = context
        self._setup = setup
        self._holder = RunHolder(context, setup.redis, lease_s=setup.lease_s)
        self._ledger: Ledger | None = None
        self._loop: LearnerLoop | None = None
        self._is_sound = True  # False inside a turn, and after one that failed

    @property
    def finished(self) -> bool:
        return self._loop is not None and self._loop.finished

    def start(self, *, deadline: Deadline) -> None:
        """Steps (1) to (4) of the module.

        Raises:
            LeaseHeld: another learner of this run is alive.
            CheckpointError: there are checkpoints, and none is whole.
            EngineError: the model directory cannot be loaded.
        """
        context = self._context
        if not self._holder.take():  # (1)
            return
        writer = context.log.writer(
            WriterSettings(transactional_id=f"rlweave.{context.run.name}.learner", linger_ms=0.0)
        )
        ledger = Ledger(writer, run=context.run.name, data_partitions=context.run.partitions, clock=context.clock)
        self._ledger = ledger
        ledger.recover(context.log, hooks=context.hooks(), deadline=deadline)  # (2)
        trainer = Trainer(self._setup.settings, self._setup.model, seed=context.run.seed)
        recovered = recover(  # (3)
            context,
            trainer=trainer,
            folder=context.run.folder / "checkpoints",
            lineages=ledger.view.lineages,
        )
        if context.stop.requested:  # nothing is written yet, so there is nothing to void
            return
        lineage = ledger.begin_lineage(  # (4)
            parent=recovered.lineage, branch_step=recovered.step, holder=context.instance
        )
        parts = self._parts(recovered, ledger=ledger, trainer=trainer, lineage=lineage)
        self._loop = LearnerLoop(context, parts, lineage=lineage, start=recovered)

    def turn(self) -> None:
        """See `LearnerLoop.turn`.

        Raises:
            Fenced: another learner holds the run by now.
        """
        if self._loop is not None:
            self._is_sound = False
            self._holder.check()
            self._loop.turn()
            self._is_sound = True

    def stop(self, *, deadline: Deadline) -> None:
        """Save what was trained since the last checkpoint; what was read and not trained will be read again.

        After an error nothing is saved or committed: another process may have taken over.
        """
        with ExitStack() as leaving:  # each step is taken whatever happened in the one before; the last one first
            leaving.callback(self._holder.release)
            if self._ledger is not None:
                leaving.callback(self._ledger.close, deadline=deadline)
            if self._loop is not None:
                leaving.callback(self._loop.close)
                if self._is_sound:
                    self._loop.save()

    def _parts(self, recovered: Recovered, *, ledger: Ledger, trainer: Trainer, lineage: int) -> LoopParts:
        context, setup = self._context, self._setup
        assembler = self._assembler(recovered, ledger=ledger, trainer=trainer)
        intake = Intake(context, assembler, settings=setup.settings, positions=recovered.positions)
        store = ChunkStore(context.run.folder / "weights" / "learner", max_bytes=setup.weights.store_max_bytes)
        publisher = Publisher(setup.weights, store=store, run=context.run.name, clock=context.clock)
        publisher.adopt(recovered.listed)
        return LoopParts(
            settings=setup.settings,
            ledger=ledger,
            trainer=trainer,
            data=OneProcess(assembler, intake, clock=context.clock),
            upstream=UpstreamWatch(context, settings=setup.settings, lineage=lineage),
            publisher=publisher,
            check_holder=self._holder.check,
        )

    def _assembler(self, recovered: Recovered, *, ledger: Ledger, trainer: Trainer) -> Assembler:
        settings = AssemblerSettings.of_run(
            self._context.run,
            weights=self._setup.rewards,
            buffer_bytes=self._setup.settings.buffer_bytes,
            vocab_size=trainer.vocab_size,
            context_tokens=trainer.context_tokens,
        )
        return Assembler(
            settings,
            clock=self._context.clock,
            lineages=ledger.view.lineages,
            closed=recovered.closed,
            step=recovered.step,
        )
