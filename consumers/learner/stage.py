"""The learner: reads prompts, samples and rewards; writes the ledger, weights and checkpoints.

    prompts --.                       .--> ledger   } one transaction
    samples ---> assembler -> batch -> trainer --> weights  } per step
    rewards --'                       '--> checkpoint (after it)

Life: (1) take the run's lease and fence the predecessor; (2) restore the newest whole checkpoint; (3) begin a lineage in
the ledger; (4) clone, if asked for and not done; (5) publish the state as a full anchor; (6) cut, train, publish, for
`max_steps`; (7) close what is open, seal the ledger.
One step: (a) oracle; (b) gradient; (c) stage the weights; (d) ledger and manifest in one transaction; (e) checkpoint
when due. A death before (d) leaves no trace of the step; one between (d) and (e) makes it a branch that the next
lineage voids, and its samples are read and trained again from the log (promises 2 and 3).
Failure: any error of (d) ends the process; it restarts from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.learner import checkpoint
from consumers.learner.assembler import Assembler
from consumers.learner.batch import Batch
from consumers.learner.cloning import Demonstrations
from consumers.learner.holder import RunHolder
from consumers.learner.intake import Intake
from consumers.learner.ledger import Ledger
from consumers.learner.oracle import OracleFile
from consumers.learner.publisher import Publisher
from consumers.learner.recovery import Recovered, recover, snapshot_of
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import StepStats, Trainer
from consumers.learner.upstream import UpstreamWatch
from pipeline.redis_client import RedisClient
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.stage import TURN_S, StageContext
from pipeline.weights.chunks import ChunkStore
from schemas.errors import CheckpointError
from schemas.reasons import Reason
from schemas.records import Version
from topics.clock import Deadline
from topics.log import WriterSettings

PUBLISH_DEADLINE_S = 30.0
"""Longest time a step's transaction may take before the process restarts."""


@dataclass(frozen=True, kw_only=True)
class LearnerParts:
    """What the learner is made of besides its context."""

    settings: LearnerSettings
    model: ModelSettings
    weights: WeightsSettings
    rewards: Mapping[str, float]  # weight of every required reward
    redis: RedisClient | None
    lease_s: float


class LearnerStage:
    """See the module text. Constructing it does no I/O."""

    def __init__(self, context: StageContext, parts: LearnerParts) -> None:
        self._context = context
        self._parts = parts
        self._settings = parts.settings
        self._run = context.run
        self._holder = RunHolder(context, parts.redis, lease_s=parts.lease_s)
        self._oracle = OracleFile(parts.settings.oracle_file)
        self._checkpoints = self._run.folder / "checkpoints"
        self._store = ChunkStore(self._run.folder / "weights" / "learner", max_bytes=parts.weights.store_max_bytes)
        self._publisher = Publisher(parts.weights, store=self._store, run=self._run.name, clock=context.clock)
        self._finished = False
        self._published = False
        self._flush_due_s = 0.0

    @property
    def finished(self) -> bool:
        return self._finished

    def start(self, *, deadline: Deadline) -> None:
        """Steps (1) to (3).

        Raises:
            LeaseHeld: another learner of this run is alive.
            CheckpointError: no checkpoint is whole.
        """
        self._holder.take()  # (1)
        writer = self._context.log.writer(
            WriterSettings(transactional_id=f"rlweave.{self._run.name}.learner", linger_ms=0.0)
        )
        writer.start(deadline=deadline)
        self._ledger = Ledger(
            writer, run=self._run.name, data_partitions=self._run.partitions, clock=self._context.clock
        )
        self._trainer = Trainer(self._settings, self._parts.model, seed=self._run.seed)
        recovered = recover(self._context, trainer=self._trainer, folder=self._checkpoints)  # (2)
        self._adopt(recovered)
        self._ledger.recover(self._context.log, deadline=deadline)  # (3)
        self._lineage = self._ledger.begin_lineage(
            parent=recovered.lineage, branch_step=recovered.step, holder=self._context.instance
        )
        self._assembler = Assembler(
            run=self._run,
            rewards=self._parts.rewards,
            closed=recovered.closed,
            lineages=self._ledger.view.lineages,
            clock=self._context.clock,
            events=self._context.events,
        )
        self._intake = Intake(self._context, self._assembler, settings=self._settings, positions=recovered.positions)
        self._upstream = UpstreamWatch(self._context, settings=self._settings)

    def turn(self) -> None:
        """One of: some cloning steps, the first publish, a step, or a short wait for data."""
        if self._num_cloning < self._settings.cloning.num_steps:
            self._clone()
        elif not self._published:
            self._open()
        else:
            self._learn()

    def stop(self, *, deadline: Deadline) -> None:
        """Nothing is in hand between turns: what was read and not trained is read again."""
        if hasattr(self, "_intake"):
            self._intake.commit_for_lag()
            self._intake.close()
        if hasattr(self, "_ledger"):
            self._ledger.close(deadline=deadline)
        self._holder.release()

    def _adopt(self, recovered: Recovered) -> None:
        self._step = recovered.step
        self._num_cloning = recovered.num_cloning_steps
        self._first_anchor = recovered.first_anchor
        self._publisher.adopt(recovered.listed)

    @property
    def _version(self) -> Version:
        return Version(lineage=self._lineage, step=self._step)

    def _clone(self) -> None:  # (4)
        self._context.events.enter("cloning")
        if not hasattr(self, "_demonstrations"):
            self._demonstrations = Demonstrations.open(self._settings.cloning, trainer=self._trainer, run=self._run)
        turn = Deadline.after(TURN_S, clock=self._context.clock)
        while self._num_cloning < self._settings.cloning.num_steps and not turn.expired:
            loss = self._trainer.clone(self._demonstrations.batch(self._num_cloning))
            self._num_cloning += 1
        self._context.metrics.gauge("loss", loss)
        if self._num_cloning == self._settings.cloning.num_steps:
            self._trainer.reset_optimizer()
            self._context.events.notice("cloned", num_steps=self._num_cloning, loss=loss)

    def _open(self) -> None:  # (5)
        with self._context.events.phase("staging_weights"):
            staged = self._publisher.stage(self._trainer.model, version=self._version)
        self._first_anchor = self._first_anchor or staged.manifest.state_digest
        with self._context.events.phase("publishing"):
            self._ledger.write_step(self._step, [], manifest=staged.manifest, retired=staged.retired)
        self._publisher.release()
        self._published = True
        self._checkpoint()
        self._announce()

    def _learn(self) -> None:  # (6)
        self._upstream.poll()
        batch = self._cut()
        if batch is None:
            self._context.events.enter("waiting_for_data")
            self._intake.pump(deadline=Deadline.after(TURN_S, clock=self._context.clock))
            self._assembler.tick(engine_ready=self._upstream.engine_ready)
            self._flush_outcomes()
            self._upstream.check(self._assembler, step=self._step)
            batch = self._cut()
        if batch is not None:
            self._train(batch)
        if self._step >= self._run.max_steps:
            self._end(f"max_steps {self._run.max_steps} reached")
        elif self._source_is_used_up():
            self._end("the prompts are used up")

    def _cut(self) -> Batch | None:
        self._assembler.evict(self._step)
        return self._assembler.cut(
            self._step, self._run.groups_per_step, allow_smaller=self._upstream.last_batch(self._assembler)
        )

    def _train(self, batch: Batch) -> None:
        events = self._context.events
        self._oracle.append(batch, lineage=self._lineage)  # (a)
        with events.phase("forward_backward"):
            stats = self._trainer.step(batch)  # (b)
        version = Version(lineage=self._lineage, step=batch.step)
        with events.phase("staging_weights"):
            staged = self._publisher.stage(self._trainer.model, version=version)  # (c)
        self._assembler.mark_trained(batch)
        with events.phase("publishing"):
            self._ledger.write_step(  # (d)
                batch.step, self._assembler.take_outcomes(), manifest=staged.manifest, retired=staged.retired
            )
        self._step = batch.step
        self._publisher.release()
        if self._step % self._settings.checkpoint.every_steps == 0 or self._step == self._run.max_steps:
            self._checkpoint()  # (e)
        self._intake.commit_for_lag()
        self._announce()
        self._report(batch, stats)

    def _checkpoint(self) -> None:
        with self._context.events.phase("checkpointing"):
            snapshot = snapshot_of(
                self._trainer,
                state=checkpoint.LearnerState(
                    lineage=self._lineage,
                    step=self._step,
                    positions={f"{topic}/{part}": at for (topic, part), at in self._assembler.positions().items()},
                    topic_ids=self._intake.topic_ids,
                    closed=self._assembler.closed.to_json(),
                    num_cloning_steps=self._num_cloning,
                    threads=self._settings.threads,
                    first_anchor=self._first_anchor,
                ),
            )
            try:
                checkpoint.save(self._checkpoints, snapshot, keep=self._settings.checkpoint.keep)
            except CheckpointError as error:
                # The earlier ones are whole, so the run is safe; it only repeats more after a crash.
                self._context.events.notice("checkpoint_failed", details={"why": error.message})

    def _flush_outcomes(self) -> None:
        """Outcomes of dropped groups give credit back, so they do not wait for a step for long."""
        now_s = self._context.clock.monotonic()
        if self._assembler.num_unwritten == 0 or now_s < self._flush_due_s:
            return
        self._flush_due_s = now_s + self._settings.outcome_flush_s
        self._ledger.write_outcomes(self._step + 1, self._assembler.take_outcomes())

    def _source_is_used_up(self) -> bool:
        return self._upstream.used_up(self._assembler)

    def _end(self, reason: str) -> None:  # (7)
        self._assembler.close_open(Reason.RUN_ENDED)
        self._ledger.write_outcomes(self._step + 1, self._assembler.take_outcomes())
        self._ledger.seal(self._step, num_groups=self._ledger.view.num_closed, reason=reason)
        self._context.events.notice("finished", details={"reason": reason}, step=self._step)
        self._finished = True

    def _announce(self) -> None:
        self._context.events.version = self._version
        self._context.metrics.gauge("step", self._step)
        self._context.metrics.gauge("version_step", self._step)
        self._context.metrics.gauge("version_lineage", self._lineage)

    def _report(self, batch: Batch, stats: StepStats) -> None:
        ages = [member.age for member in batch.members]
        values = {
            "reward_mean": stats.reward_mean,
            "loss": stats.loss,
            "age_mean": sum(ages) / len(ages),
            "age_max": float(batch.max_age),
        }
        for name, value in values.items():
            self._context.metrics.gauge(name, value)
        self._context.events.notice(
            "step",
            step=self._step,
            num_samples=batch.num_samples,
            num_tokens=stats.num_tokens,
            grad_norm=stats.grad_norm,
            clipped_share=stats.clipped_share,
            capped_share=stats.capped_share,
            mismatch_mean=stats.mismatch_mean,
            **values,
        )
