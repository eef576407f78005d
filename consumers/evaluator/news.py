"""What the evaluator must know of the run: published versions, the history that survives, what was evaluated.

Data in: `ledger`, `weights` and `evaluations` from their beginnings. Data out: manifests that can be fetched, done
tasks, the last version once the run is sealed.
Invariants: `start` returns when everything that was there has been read; no consumer group, nothing is committed. An
evaluation of a branch that was abandoned does not count.
Failure: `DeadlineExceeded` when catching up takes too long.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumers.evaluator.plan import Task
from pipeline.history import LedgerView
from pipeline.stage import StageContext
from schemas.evaluation import Evaluation
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, Version
from topics.catalog import EVALUATIONS, LEDGER, WEIGHTS
from topics.clock import Deadline
from topics.log import Envelope, Reader, ReaderSettings

_MAX_RECORDS = 5_000
_POLL_S = 0.25


class News:
    """Constructing it does no I/O."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._reader: Reader | None = None
        self._manifests: dict[Version, Manifest] = {}
        self._evaluated: set[tuple[Task, str]] = set()
        self.ledger = LedgerView(context.log.data_partitions)

    @property
    def published(self) -> Mapping[Version, Manifest]:
        """Manifests that were not pruned, of the surviving history or not."""
        return self._manifests

    def surviving(self) -> list[Version]:
        """Published versions that the surviving history has come to."""
        return [version for version in self._manifests if self.ledger.is_made(version)]

    def done(self, digests: Mapping[str, str]) -> set[Task]:
        """What was evaluated in the surviving history.

        Args:
            digests: of the settings of each set; evaluations with others do not count.
        """
        lineages = self.ledger.lineages
        return {
            task
            for task, digest in self._evaluated
            if digest == digests.get(task.name) and lineages.survives(task.version.lineage, task.version.step)
        }

    def last(self) -> Version | None:
        """The last version of a run that is sealed; None: it goes on."""
        if self.ledger.sealed is None:
            return None
        return max(self.surviving(), default=None)

    def start(self, *, deadline: Deadline) -> None:
        """Read all that is there.

        Raises:
            DeadlineExceeded: it took too long.
            LogError: the broker did not tell where the ends are.
        """
        settings = ReaderSettings(topics=(LEDGER, WEIGHTS, EVALUATIONS), instance=self._context.instance)
        reader = self._reader = self._context.log.reader(settings, hooks=self._context.hooks())
        ends = reader.end_positions()
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            deadline.check("the ledger, weights and evaluations to be read to their ends")
            self.poll(wait_s=_POLL_S)

    def poll(self, *, wait_s: float) -> None:
        """Take in what is new, waiting at most `wait_s` for it."""
        if self._reader is None:
            return
        for envelope in self._reader.poll(_MAX_RECORDS, deadline=Deadline.after(wait_s, clock=self._context.clock)):
            self._add(envelope)

    def add(self, evaluation: Evaluation) -> None:
        """One that was just written here."""
        task = Task(version=evaluation.version, name=evaluation.name)
        self._evaluated.add((task, evaluation.settings_digest))

    def close(self) -> None:
        """Let go of the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _add(self, envelope: Envelope) -> None:
        record = envelope.record
        if isinstance(record, Outcome | LineageStarted | LedgerSealed):
            self.ledger.add(envelope.partition, record)
        elif isinstance(record, Manifest):
            self._manifests[record.version] = record
        elif isinstance(record, Evaluation):
            self.add(record)
        elif record is None and envelope.topic == WEIGHTS.name:
            gone = (envelope.key if envelope.key is not None else b"").decode("ascii", errors="replace")
            self._manifests = {version: each for version, each in self._manifests.items() if str(version) != gone}
