"""Samples out, acknowledgements back: the commit rule of a rollout producer.

Role: the only place that writes samples and acknowledges prompts.
Data in: finished groups with the delivery of their prompt, or the word of who holds it; data out: `samples` records,
committed offsets.
Invariants: a prompt is done only after (1) all samples of its group were written, (2) the broker confirmed them by a
flush, and (3) only then are offsets committed; the same numbers stand in the body. A killed process has therefore
lost nothing: what was not committed is delivered again.
Failure: `DeliveryError` ends the process, nothing it could not confirm is acknowledged. A sample over the topic's limit
becomes a small failure record, so that its group is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pipeline.stage import StageContext
from producers.rollout.groups import Finished
from producers.rollout.meter import count_samples
from producers.rollout.samples import Attempt, failed
from producers.rollout.settings import RolloutSettings
from producers.rollout.tickets import Taken, Ticket
from schemas.errors import CodecError, RecordTooLarge
from schemas.reasons import Reason
from schemas.records import Sample
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.log import Writer
from topics.queue import WorkQueue


class SampleOutput:
    """See the module.

    Args:
        writer: not transactional.
        queue: the prompts were taken from it.
    """

    def __init__(self, writer: Writer, *, queue: WorkQueue, context: StageContext, settings: RolloutSettings) -> None:
        self._writer = writer
        self._queue = queue
        self._context = context
        self._settings = settings
        self._written: list[Finished[Ticket]] = []  # not confirmed
        self.on_done: Callable[[Finished[Ticket]], None] = lambda _: None  # told of each that is confirmed
        self._counts: Counter[str] = Counter()
        self._settled_s = context.clock.monotonic()

    @property
    def is_settled(self) -> bool:
        """Whether all that was written is confirmed."""
        return not self._written

    def write(self, finished: Finished[Ticket]) -> None:
        """(1) Queue all samples of a group.

        Raises:
            DeliveryError: an earlier record failed.
        """
        for sample in finished.samples:
            self._write(sample, attempt=finished.attempt)
        count_samples(self._context.metrics, finished.samples)
        self._written.append(finished)

    def settle(self, *, now: bool = False, deadline: Deadline | None = None) -> None:
        """Acknowledge what is confirmed, when it is time or at once.

        Args:
            now: do not wait for more to come together.
            deadline: for the confirmation; absent: `flush_limit_s` from now.

        Raises:
            DeliveryError: it is not known whether everything was written.
        """
        clock = self._context.clock
        if not now and clock.monotonic() - self._settled_s < self._settings.acknowledge_s:
            return
        self._settled_s = clock.monotonic()
        if self._written:
            # (2) confirmed by the broker, or an error that ends the process
            limit = Deadline.after(self._settings.flush_limit_s, clock=clock) if deadline is None else deadline
            self._writer.flush(deadline=limit)
            for finished in self._written:
                if not isinstance(finished.ticket, Taken):
                    self._queue.done(finished.ticket)
                self.on_done(finished)
            self._written.clear()
            self._count()
        self._queue.commit()  # (3)

    def _write(self, sample: Sample, *, attempt: Attempt) -> None:
        try:
            self._writer.write(SAMPLES, sample)
        except RecordTooLarge as error:
            sample = self._replaced(sample, attempt=attempt, reason=Reason.TOO_LARGE, why=error.message)
        except CodecError as error:
            sample = self._replaced(sample, attempt=attempt, reason=Reason.ENGINE_FAILED, why=error.message)
        self._counts["completed" if sample.failure is None else sample.failure] += 1

    def _replaced(self, sample: Sample, *, attempt: Attempt, reason: str, why: str) -> Sample:
        small = failed(attempt, member=sample.member, reason=reason, unix_ms=sample.finished_unix_ms)
        self._writer.write(SAMPLES, small)
        details = {"group": str(sample.group), "member": str(sample.member), "reason": reason, "error": why}
        self._context.events.notice("sample_refused", details=details)
        return small

    def _count(self) -> None:
        for result, count in self._counts.items():
            self._context.metrics.count("samples_made", count, result=result)
        self._context.metrics.count("records_written", self._counts.total(), topic=SAMPLES.name)
        self._counts.clear()
