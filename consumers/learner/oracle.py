"""The oracle file: every sample id that enters a loss, written before it does.

Role: a witness outside the ledger. A checker compares it with the topics and needs nothing of rlweave for that.
Data out: one JSON object a line: `lineage`, `step` (the one the batch produces), `sample_ids`.
Invariants: a line is on the disk before the step's first gradient; lines are only appended.
Failure: `LearnerFileError`; training does not go on without its witness.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from consumers.learner.batch import Batch
from pipeline.appending import append_line
from schemas.errors import LearnerFileError


class OracleFile:
    """Appends to the file at `path`; None writes nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, batch: Batch, *, lineage: int) -> None:
        """Record one batch and sync.

        Raises:
            LearnerFileError: the line is not on the disk.
        """
        if self._path is None:
            return
        line = orjson.dumps({"lineage": lineage, "step": batch.step, "sample_ids": batch.sample_ids()}) + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self._path, line, sync=True)
        except OSError as error:
            raise LearnerFileError(
                f"oracle file {self._path} cannot be written: {error}", hint="free disk space, or unset oracle_file"
            ) from error
