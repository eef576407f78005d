"""The reference consumer: scores every sample of a run with a frozen model.

    samples -> [take] -> [one forward pass] -> reference-scores -> flush -> commit

Role: one process of stage `reference`; replicas share a consumer group. The learner joins what it writes as it joins
rewards, for the divergence in its loss (`learner.loss.reference_kl`) and for DPO.
Data in and out: Sample records in; one ReferenceScore per sample out, with log-probabilities or a failure. A sample
that is itself a failure, or contradicts itself, gets none: its member is terminal already.
Invariants: the commit protocol is (1) write the scores, (2) wait until the broker has them, (3) commit the lowest
offset without one. `kill -9` anywhere makes the next process score some samples again, never lose one; the learner
uses the first copy.
Failure: `EngineError` when the model cannot be loaded; those of the log end the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from consumers.reference.model import ReferenceModel
from consumers.reference.settings import ReferenceSettings, reference_group
from pipeline.settings import ModelSettings
from pipeline.stage import TURN_S, StageContext
from schemas.errors import RecordInvalid
from schemas.records import ReferenceScore, Sample
from schemas.validation import check_sample
from topics.catalog import REFERENCE_SCORES, SAMPLES
from topics.clock import Deadline
from topics.log import Envelope, ReaderSettings, Writer, WriterSettings
from topics.queue import WorkQueue

FLUSH_S = 30.0
_PASS_SAMPLES = 64  # most of one turn, so that one can end between two


class ReferenceStage:
    """See the module. Constructing it does no I/O.

    Args:
        make_model: loads the model.
    """

    @property
    def finished(self) -> bool:
        """False: it serves until it is told to stop."""
        return False

    def __init__(
        self,
        context: StageContext,
        settings: ReferenceSettings,
        *,
        model: ModelSettings,
        make_model: Callable[[ReferenceSettings, ModelSettings], ReferenceModel] = ReferenceModel,
    ) -> None:
        self._context = context
        self._settings = settings
        self._policy = model
        self._make_model = make_model
        self._model: ReferenceModel | None = None
        self._queue: WorkQueue
        self._writer: Writer

    def start(self, *, deadline: Deadline) -> None:  # noqa: ARG002 - loading cannot be cut short
        """Load the model, join the consumer group.

        Raises:
            EngineError: the model directory cannot be loaded.
        """
        context = self._context
        model = self._make_model(self._settings, self._policy)
        self._writer = context.log.writer(WriterSettings(linger_ms=1.0))
        self._queue = WorkQueue.open(
            context.log,
            ReaderSettings(
                topics=(SAMPLES,),
                assign="group",
                group=reference_group(context.run.name),
                start="earliest",
                instance=context.instance,
            ),
            hooks=context.hooks(),
            max_in_flight=self._settings.max_in_flight,
            clock=context.clock,
        )
        self._model = model
        context.events.notice("reference_loaded", details={"digest": model.digest})

    def turn(self) -> None:
        """Take what is there, score it, write, flush, commit."""
        if self._model is None:
            raise RuntimeError("a turn before the start")
        context = self._context
        context.events.enter("waiting_for_samples")
        most = min(self._settings.max_in_flight, _PASS_SAMPLES)
        envelopes = self._queue.take(most, deadline=Deadline.after(TURN_S, clock=context.clock))
        if not envelopes:
            return
        context.metrics.count("records_read", len(envelopes), topic=SAMPLES.name)
        context.events.enter("scoring")
        began_s = context.clock.monotonic()
        scores = list(self._scores(self._model, envelopes))
        for score in scores:  # (1)
            self._writer.write(REFERENCE_SCORES, score)
            context.metrics.count("samples_scored", result="value" if score.failure is None else "failed")
        self._writer.flush(deadline=Deadline.after(FLUSH_S, clock=context.clock))  # (2)
        context.metrics.count("records_written", len(scores), topic=REFERENCE_SCORES.name)
        context.metrics.observe("score_s", (context.clock.monotonic() - began_s) / len(envelopes))
        for envelope in envelopes:
            self._queue.done(envelope)
        self._queue.commit()  # (3)

    def stop(self, *, deadline: Deadline) -> None:
        """Leave the group; what was taken was written and committed in its own turn."""
        if self._model is not None:
            self._queue.close()
            self._writer.close(deadline=deadline)

    def _scores(self, model: ReferenceModel, envelopes: Sequence[Envelope]) -> Iterator[ReferenceScore]:
        wanted = [(each.offset, each.record) for each in envelopes if isinstance(each.record, Sample)]
        sound = [(offset, sample) for offset, sample in wanted if _is_sound(sample)]
        problems = [model.problem(sample) for _, sample in sound]
        fit = [sample for (_, sample), problem in zip(sound, problems, strict=True) if not problem]
        found = iter(model.score(fit))
        for (offset, sample), problem in zip(sound, problems, strict=True):
            yield ReferenceScore(
                run=sample.run,
                group=sample.group,
                member=sample.member,
                attempt=sample.attempt,
                model_digest=model.digest,
                logprobs=None if problem else next(found),
                failure=problem or None,
                sample_offset=offset,
                scored_unix_ms=self._context.clock.unix_ms(),
                producer=self._context.instance,
            )


def _is_sound(sample: Sample) -> bool:
    if sample.failure is not None:
        return False
    try:
        check_sample(sample)
    except RecordInvalid:
        return False
    return True
