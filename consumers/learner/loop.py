"""The learner's loop: clone, publish, then cut, train and publish until the last step.

Turns: (1) clone, if asked for and not done; (2) publish the state as a full anchor, the first version of this lineage;
(3) steps; (4) at the end, close what is open and seal the ledger.
One step: (a) oracle; (b) gradient; (c) copy the weights, and encode them on a thread; (d) ledger and manifest in one
transaction; (e) checkpoint when due. A death before (d) leaves no trace of the step. One between (d) and (e) leaves a
branch that the next lineage voids; its samples are read and trained again from the log (promises 2 and 3).
While a large version is encoded, the next step goes on (docs/design/0004): data are read, its batch is cut, (a) and (b)
run up to the first change of the weights. (d) follows at the first chance, and always before that change, before a
checkpoint, before anything else is written to the ledger.
Invariants: what a checkpoint says is noted when the step's outcomes are taken and before anything else closes, so
closed set, positions and ledger agree, also when it is written later, at the end or at a stop: weights do not change
between steps.
Outcomes decided between steps carry the step in progress. Every prompt that is on the log at the seal has its outcome.
Failure: an error of (d) goes through and ends the process; a failed (e) is a notice, since earlier ones are whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from consumers.learner import checkpoint
from consumers.learner.batch import Batch
from consumers.learner.cloning import Demonstrations
from consumers.learner.data import DataSide
from consumers.learner.ledger import Ledger
from consumers.learner.oracle import OracleFile
from consumers.learner.outcomes import with_gaps
from consumers.learner.pending import PendingStep, StepReports, report_staged
from consumers.learner.publisher import Publisher
from consumers.learner.recovery import Recovered, snapshot_of, surviving
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import Trainer
from consumers.learner.upstream import UpstreamWatch
from pipeline.stage import TURN_S, StageContext
from schemas.errors import CheckpointError
from schemas.reasons import Reason
from schemas.records import Version
from topics.clock import Deadline

PEER_WAIT_S = 30.0  # longest wait for the peer process at the first publish
SHORT_STAGING_S = 0.1  # a version encoded within this goes out before anything else is done
_PENDING_POLL_S = 0.02  # longest wait for data while a version is being encoded: how late it may go out


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """What the loop works with; all of it is live."""

    settings: LearnerSettings
    ledger: Ledger
    trainer: Trainer
    data: DataSide
    upstream: UpstreamWatch
    publisher: Publisher
    check_holder: Callable[[], None]  # raises `Fenced` when another learner holds the run


class LearnerLoop:
    """See the module.

    Args:
        context: of the stage.
        parts: see `LoopParts`.
        lineage: ours, begun in the ledger.
        start: where the checkpoint left off.
    """

    def __init__(self, context: StageContext, parts: LoopParts, *, lineage: int, start: Recovered) -> None:
        self._context = context
        self._parts = parts
        self._run = context.run
        self._oracle = OracleFile(parts.settings.oracle_file)
        self._lineage = lineage
        self._step = start.step
        self._num_cloned = start.num_cloning_steps
        self._first_anchor = start.first_anchor
        self._restored = start.path  # the checkpoint that has the present weights, as long as they are those restored
        self._demonstrations: Demonstrations | None = None
        self._is_open = False
        self._is_waiting = False  # for data
        self._peer_wait: Deadline | None = None
        self._pending: PendingStep | None = None
        self._noted: checkpoint.LearnerState | None = None  # what a checkpoint of the present weights says
        self._prune_due = False  # a checkpoint was written, and no transaction since
        self._closing: Deadline | None = None
        self._flush_due_s = 0.0
        self._reports = StepReports(context, mismatch_limit=parts.settings.mismatch_notice)
        self.finished = False

    def turn(self) -> None:
        """Some cloning steps, the first publish, one step, or a short wait for data."""
        if self._num_cloned < self._parts.settings.cloning.num_steps:
            self._clone()
        elif not self._is_open:
            self._open()
        elif self._step >= self._run.max_steps:
            self._read_rest()
        else:
            self._learn()

    def save(self) -> None:
        """For an orderly stop: a checkpoint of what was trained since the last one, and offsets for lag.

        Raises:
            Fenced: another learner holds the run by now; nothing was written.
        """
        self._parts.check_holder()
        self._write_pending(wait_s=None)
        self._checkpoint()
        self._parts.data.commit_for_lag()

    def close(self, *, in_order: bool) -> None:
        """Stop reading and staging. `in_order`: not after an error."""
        self._parts.publisher.close()
        self._parts.data.close(in_order=in_order)
        self._parts.upstream.close()

    @property
    def _checkpoints(self) -> Path:
        return self._run.folder / "checkpoints"

    @property
    def _version(self) -> Version:
        return Version(lineage=self._lineage, step=self._step)

    def _clone(self) -> None:  # (1)
        trainer, settings = self._parts.trainer, self._parts.settings.cloning
        self._context.events.enter("cloning")
        self._restored = None
        if self._demonstrations is None:
            self._demonstrations = Demonstrations.open(settings, trainer=trainer, seed=self._run.seed)
        turn = Deadline.after(TURN_S, clock=self._context.clock)
        loss = 0.0
        while self._num_cloned < settings.num_steps and not turn.expired:
            self._parts.data.clone(self._num_cloned)
            loss = trainer.clone(self._demonstrations.batch(self._num_cloned), self._num_cloned)
            self._num_cloned += 1
        self._context.metrics.gauge("loss", loss)
        if self._num_cloned == settings.num_steps:
            self._parts.data.cloned()
            trainer.reset_optimizer()
            passed_over = self._demonstrations.num_passed_over
            self._context.events.notice("cloned", num_steps=self._num_cloned, loss=loss, num_passed_over=passed_over)

    def _open(self) -> None:  # (2)
        events = self._context.events
        if not self._has_peer():
            return
        with events.phase("staging_weights"):
            staged = self._parts.publisher.stage(self._parts.trainer.model, version=self._version)
        self._first_anchor = self._first_anchor or staged.manifest.state_digest
        with events.phase("publishing"):
            self._parts.ledger.write_step(self._step, [], manifest=staged.manifest, retired=staged.retired)
        self._parts.publisher.release()
        self._is_open = True
        self._noted = self._state()
        self._checkpoint()
        self._announce()
        report_staged(self._context, staged)
        self._reports.opened()
        self._parts.upstream.reset()

    def _has_peer(self) -> bool:
        """Whether a peer serves our store; waits a turn for it. Past the limit the publisher says what is wrong."""
        if self._peer_wait is None:
            self._peer_wait = Deadline.after(PEER_WAIT_S, clock=self._context.clock)
        if self._parts.publisher.has_seed or self._peer_wait.expired:
            return True
        self._context.events.enter("waiting_for_peer")
        self._parts.data.greet()
        self._context.stop.wait(TURN_S)
        return False

    def _learn(self) -> None:  # (3)
        batch = self._next_batch()
        if batch is not None:
            self._train(batch)
        else:
            self._write_pending(wait_s=0.0)
        if self._parts.upstream.used_up(self._parts.data):
            self._end("the prompts are used up")

    def _next_batch(self) -> Batch | None:
        """The next batch; reads what has arrived, and waits a turn when there is none."""
        data, upstream = self._parts.data, self._parts.upstream
        if not self._is_waiting:
            self._context.events.enter("reading")
        upstream.poll()
        data.read(step=self._step, engine_ready=upstream.engine_ready, wait_s=0.0)
        batch = self._cut()
        if batch is not None:
            return batch
        self._context.events.enter("waiting_for_data")
        self._is_waiting = True
        limit_s = TURN_S if self._pending is None else _PENDING_POLL_S
        data.read(step=self._step, engine_ready=upstream.engine_ready, wait_s=limit_s)
        batch = self._cut()
        if batch is None:
            self._flush_outcomes()
            upstream.check(data, step=self._step)
        return batch

    def _cut(self) -> Batch | None:
        data = self._parts.data
        smaller = self._parts.upstream.last_batch(data)
        return data.cut(self._step, num_groups=self._run.groups_per_step, allow_smaller=smaller)

    def _train(self, batch: Batch) -> None:
        parts, events = self._parts, self._context.events
        self._is_waiting = False
        self._reports.cut(batch)
        self._oracle.append(batch, lineage=self._lineage)  # (a)
        with events.phase("forward_backward"):
            stats = parts.trainer.step(batch, meanwhile=self._between)  # (b)
        self._reports.trained(batch)
        self._noted = self._restored = None  # until (d) there is nothing that a checkpoint could say of these weights
        with events.phase("staging_weights"):
            parts.publisher.begin(parts.trainer.model, version=Version(lineage=self._lineage, step=batch.step))  # (c)
        drafts = with_gaps(parts.data.close_trained(batch), stats.gaps)
        self._step = batch.step
        self._pending = PendingStep(batch=batch, stats=stats, drafts=drafts, state=self._state())
        self._write_pending(wait_s=None if self._checkpoint_is_due else SHORT_STAGING_S)

    def _between(self, weights_change: bool) -> None:
        """Between micro-batches: write the step before as soon as it can be; it must be before the weights change."""
        self._write_pending(wait_s=None if weights_change else 0.0)

    def _write_pending(self, *, wait_s: float | None) -> None:
        """(d), and (e) when due, if the version is encoded within `wait_s` (None: however long it takes)."""
        pending, parts, events = self._pending, self._parts, self._context.events
        if pending is None:
            return
        with events.phase("staging_weights") if wait_s is None else nullcontext():
            staged = parts.publisher.poll(wait_s=wait_s)
        if staged is None:
            return
        with events.phase("publishing"):
            parts.ledger.write_step(
                pending.batch.step, pending.drafts, manifest=staged.manifest, retired=staged.retired
            )  # (d)
            self._pending = None
            self._noted = pending.state
            parts.publisher.release()
            self._prune()
        if self._checkpoint_is_due:
            self._checkpoint()  # (e)
        parts.check_holder()
        parts.data.commit_for_lag()
        self._announce()
        rewards = parts.ledger.take_rewards()
        self._reports.written(pending, staged=staged, rewards=rewards)
        parts.upstream.reset()

    @property
    def _checkpoint_is_due(self) -> bool:
        return self._step % self._parts.settings.checkpoint.every_steps == 0 or self._step == self._run.max_steps

    def _state(self) -> checkpoint.LearnerState:
        """What a checkpoint says; taken together with the outcomes of a step, before anything else is closed."""
        parts = self._parts
        return checkpoint.LearnerState(
            lineage=self._lineage,
            step=self._step,
            positions={f"{topic}/{partition}": at for (topic, partition), at in parts.data.positions().items()},
            topic_ids=parts.data.topic_ids,
            closed=parts.data.closed.to_json(),
            num_cloning_steps=self._num_cloned,
            threads=parts.settings.threads,
            ranks=parts.settings.ranks,
            first_anchor=self._first_anchor,
            base_digest=parts.trainer.base_digest,
        )

    def _checkpoint(self) -> None:
        """Write what was noted, with the present weights; nothing to do when that was done already."""
        parts, state = self._parts, self._noted
        if state is None:
            return
        parts.check_holder()
        self._noted = None
        with self._context.events.phase("checkpointing"):
            try:
                self._save(state)
                self._prune_due = True
            except CheckpointError as error:
                # The earlier ones are whole, so nothing is lost; a crash only repeats more.
                self._context.events.notice("checkpoint_failed", details={"why": error.message})

    def _save(self, state: checkpoint.LearnerState) -> None:
        """A lineage that begins with what a checkpoint has keeps that under its own name, which costs next to nothing.

        Raises:
            CheckpointError: it was not written.
        """
        if self._restored is not None:
            with suppress(CheckpointError):  # not every file system links
                checkpoint.save_again(self._checkpoints, state, like=self._restored)
                return
        checkpoint.save(self._checkpoints, snapshot_of(self._parts.trainer, state=state))

    def _prune(self) -> None:
        """After a transaction: remove checkpoints that retention does not keep."""
        if self._prune_due:
            self._prune_due = False
            survives = surviving(self._parts.ledger.view.lineages)
            checkpoint.prune(self._checkpoints, keep=self._parts.settings.checkpoint.keep, survives=survives)

    def _flush_outcomes(self) -> None:
        """Outcomes of dropped groups give credit back, so they do not wait long for a step to carry them."""
        now_s = self._context.clock.monotonic()
        if now_s < self._flush_due_s or self._pending is not None:  # the ledger's steps are in order
            return
        self._flush_due_s = now_s + self._parts.settings.outcome_flush_s
        self._parts.ledger.write_outcomes(self._step + 1, self._parts.data.take_outcomes())

    def _read_rest(self) -> None:
        """The last step is done. A prompt may have been admitted before its producer knew, so read on until the
        producer says that there are no more and all of them are read; then every one gets its outcome."""
        parts = self._parts
        if self._closing is None:
            self._closing = Deadline.after(self._run.stop_grace_s, clock=self._context.clock)
        self._context.events.enter("waiting_for_data")
        parts.upstream.poll()
        parts.data.read(step=self._step, engine_ready=parts.upstream.engine_ready, wait_s=TURN_S)
        if self._closing.expired:
            self._context.events.notice("prompts_not_heard", details={"waited_for": "the end of admission"})
        elif not parts.upstream.has_all(parts.data):
            return
        self._end(f"max_steps {self._run.max_steps} reached")

    def _end(self, reason: str) -> None:  # (4)
        parts = self._parts
        self._write_pending(wait_s=None)
        self._checkpoint()
        parts.ledger.write_outcomes(self._step + 1, parts.data.close_open(Reason.RUN_ENDED))
        parts.ledger.seal(self._step, num_groups=parts.ledger.view.num_closed, reason=reason)
        self._prune()
        self._context.events.notice("finished", details={"reason": reason}, step=self._step)
        self.finished = True

    def _announce(self) -> None:
        self._context.events.version = self._version
        self._context.metrics.gauge("step", self._step)
        self._context.metrics.gauge("version_step", self._step)
        self._context.metrics.gauge("version_lineage", self._lineage)
