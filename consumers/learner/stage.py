"""The learner's life: claim the run, restore, begin a lineage; then the loop (`consumers.learner.loop`).

    prompts --.                         .--> ledger   } one transaction
    samples ---> assembler -> batch -> trainer -> weights } per step
    rewards --'                         '--> checkpoint (after it)

Role: stage `learner`; reads prompts, samples, rewards and events, writes ledger and weights.
Start: (1) take the run's lease; (2) fence the predecessor and read the ledger; (3) restore the newest whole checkpoint;
(4) with several ranks, this is rank 0: meet the others; (5) begin a lineage that branches from the checkpoint, and hand
its state to the other ranks.
Invariants: (1) refuses a second learner early and kindly; (2) makes sure of it, as nothing a fenced learner tries later
is written (promise 5).
Failure: `LeaseHeld` when another learner lives; any error of a transaction ends the process, which restarts from its
checkpoint.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from consumers.learner.data import DataSide, OneProcess
from consumers.learner.facts import Arithmetic, facts_of
from consumers.learner.holder import RunHolder
from consumers.learner.intake import Intake
from consumers.learner.ledger import Ledger
from consumers.learner.loop import LearnerLoop, LoopParts
from consumers.learner.publisher import WIRE_NAMES, Publisher
from consumers.learner.recovery import Elsewhere, Recovered, recover
from consumers.learner.setup import LearnerSetup, make_assembler, make_trainer
from consumers.learner.trainer import Trainer
from consumers.learner.upstream import UpstreamWatch
from pipeline.history import Lineages
from pipeline.stage import StageContext
from pipeline.traffic.phase_file import PhaseWriter, phase_path
from pipeline.uploads.target import check_target
from pipeline.weights.chunks import ChunkStore
from topics.clock import Deadline
from topics.log import WriterSettings

if TYPE_CHECKING:
    from consumers.learner.ranks.group import RankGroup


class LearnerStage:
    """See the module. Constructing it does no I/O."""

    def __init__(self, context: StageContext, setup: LearnerSetup) -> None:
        self._context = context
        self._setup = setup
        self._holder = RunHolder(context, setup.redis, lease_s=setup.lease_s)
        self._ledger: Ledger | None = None
        self._loop: LearnerLoop | None = None
        self._phases: PhaseWriter | None = None
        self._is_sound = True  # False inside a turn, and after one that failed

    @property
    def finished(self) -> bool:
        return self._loop is not None and self._loop.finished

    def start(self, *, deadline: Deadline) -> None:
        """Steps (1) to (5) of the module.

        Raises:
            LeaseHeld: another learner of this run is alive.
            CheckpointError: there are checkpoints, and none is whole; or the ledger has steps, and none is anywhere.
            UploadError: the local ones are gone, and those that were uploaded cannot be read.
            SettingsError: what uploads need is not installed.
            EngineError: the model directory cannot be loaded.
        """
        context = self._context
        context.metrics.gauge("ranks", self._setup.settings.ranks)
        if not self._holder.take():  # (1)
            return
        writer = context.log.writer(
            WriterSettings(transactional_id=f"rlweave.{context.run.name}.learner", linger_ms=0.0)
        )
        ledger = Ledger(writer, run=context.run.name, data_partitions=context.run.partitions, clock=context.clock)
        self._ledger = ledger
        ledger.recover(context.log, hooks=context.hooks(), deadline=deadline)  # (2)
        trainer = make_trainer(context, self._setup)
        recovered = recover(  # (3)
            context,
            trainer=trainer,
            folder=context.run.folder / "checkpoints",
            lineages=ledger.view.lineages,
            elsewhere=self._elsewhere(num_trained=ledger.view.step),
        )
        self._tell_phases()
        group = self._meet(trainer, deadline=deadline)  # (4)
        if context.stop.requested:  # nothing is written yet, so there is nothing to void
            return
        lineage = ledger.begin_lineage(  # (5)
            parent=recovered.lineage,
            branch_step=recovered.step,
            holder=context.instance,
            facts=self._facts(recovered, trainer=trainer),
        )
        parts = self._parts(recovered, ledger=ledger, trainer=trainer, group=group, lineage=lineage)
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
            leaving.callback(self._tell_no_phase)
            leaving.callback(self._holder.release)
            if self._ledger is not None:
                leaving.callback(self._ledger.close, deadline=deadline)
            if self._loop is not None:
                leaving.callback(self._loop.close, in_order=self._is_sound)
                if self._is_sound:
                    self._loop.save()

    def _elsewhere(self, *, num_trained: int) -> Elsewhere | None:
        url = self._setup.settings.checkpoint.upload
        if url is None:
            return None
        check_target(url)
        return Elsewhere(url=url, num_trained=num_trained)

    def _tell_phases(self) -> None:
        """Let senders of this host see each phase at once."""
        try:
            self._phases = PhaseWriter(phase_path(self._context.run.folder))
        except OSError as error:  # no such file: they know no phase, and go by the weights alone
            self._context.events.notice("phase_not_told", details={"why": str(error)})
        else:
            self._context.events.on_phase = self._phases.enter

    def _tell_no_phase(self) -> None:
        if self._phases is not None:
            self._context.events.on_phase = lambda _: None
            self._phases.close()

    def _facts(self, recovered: Recovered, *, trainer: Trainer) -> dict[str, str]:
        setup = self._setup
        arithmetic = Arithmetic.of(
            setup.settings,
            model=setup.model,
            weights=setup.weights,
            seed=self._context.run.seed,
            has_reference=setup.has_reference,
        )
        begins = recovered.lineage == 0
        return facts_of(arithmetic, trainer, begins=begins, first_anchor=recovered.first_anchor)

    def _meet(self, trainer: Trainer, *, deadline: Deadline) -> RankGroup | None:
        """The other ranks, connected; None when there are none, or a stop was asked for."""
        if self._setup.settings.ranks == 1:
            return None
        from consumers.learner.ranks.begin import meet  # noqa: PLC0415 - a single rank needs nothing of it

        return meet(self._context, self._setup, rank=0, trainer=trainer, deadline=deadline)

    def _parts(
        self, recovered: Recovered, *, ledger: Ledger, trainer: Trainer, group: RankGroup | None, lineage: int
    ) -> LoopParts:
        context, setup = self._context, self._setup
        store = ChunkStore(context.run.folder / "weights" / "learner", max_bytes=setup.weights.store_max_bytes)
        wire = setup.weights.wire_dtype
        publisher = Publisher(
            setup.weights,
            store=store,
            run=context.run.name,
            clock=context.clock,
            adapting=trainer.adapting(wire_dtype=None if wire is None else WIRE_NAMES[wire]),
        )
        publisher.adopt(recovered.listed)
        return LoopParts(
            settings=setup.settings,
            ledger=ledger,
            trainer=trainer,
            data=self._data(recovered, lineages=ledger.view.lineages, trainer=trainer, group=group),
            upstream=UpstreamWatch(context, settings=setup.settings, lineage=lineage),
            publisher=publisher,
            check_holder=self._holder.check,
        )

    def _data(self, recovered: Recovered, *, lineages: Lineages, trainer: Trainer, group: RankGroup | None) -> DataSide:
        context, setup = self._context, self._setup
        if group is not None:
            from consumers.learner.ranks.begin import lead  # noqa: PLC0415 - a single rank needs nothing of it

            return lead(context, setup, group=group, trainer=trainer, recovered=recovered, lineages=lineages)
        assembler = make_assembler(
            context, setup, trainer=trainer, lineages=lineages, closed=recovered.closed, step=recovered.step
        )
        intake = Intake(
            context,
            assembler,
            settings=setup.settings,
            positions=recovered.positions,
            has_reference=setup.has_reference,
        )
        return OneProcess(assembler, intake)
