"""What the log says of the end of a run: sealed, and scored to the last sample.

Role: tells the supervisor what exit codes cannot.
Data in: the last records of the ledger, and the lag of the reward consumers. Data out: two answers.
Invariants: what the broker does not tell is taken as "no", so a run is not ended on a guess.
Failure: none; the broker being away is "no".
"""

from __future__ import annotations

import logging

from consumers.rewards.settings import group_id
from ops.run_file import RunFile
from schemas.errors import LogError, RlweaveError
from schemas.records import LedgerSealed, Record
from topics.catalog import LEDGER, SAMPLES
from topics.clock import Deadline
from topics.log import Log, ReaderHooks, ReaderSettings

_LOOK_BACK = 16  # offsets before the end of the ledger; transaction markers take some
_READ_LIMIT_S = 10.0
_POLL_S = 0.25
_log = logging.getLogger(__name__)


class LogEnds:
    """Answers for one run; see `ops.supervisor.supervisor.RunEnds`."""

    def __init__(self, log: Log, *, run_file: RunFile) -> None:
        self._log = log
        self._run_file = run_file

    @property
    def grace_s(self) -> float:
        """Time that processes have for an orderly stop."""
        return self._run_file.run.stop_grace_s

    def is_complete(self) -> bool:
        """Whether the ledger ends with a seal; a lineage that began after one reopened the run."""
        try:
            return isinstance(self._last_record(), LedgerSealed)
        except RlweaveError as error:
            _log.warning("whether the run is complete is not known: %s", error.message)
            return False

    def is_drained(self) -> bool:
        """Whether every reward consumer has committed all samples; unknown lag counts as not."""
        run, admin = self._run_file.run.name, self._log.admin()
        groups = [group_id(run, name, settings=settings) for name, settings in self._run_file.rewards.items()]
        try:
            return all(lag.lag_records == 0 for group in groups for lag in admin.lag(group, [SAMPLES]))
        except LogError as error:
            _log.warning("the lag of the rewards is not known: %s", error.message)
            return False

    def _last_record(self) -> Record | None:
        """Of partition 0: lineages and seals are on every one, and nothing follows a seal but a lineage."""
        earliest, end = self._log.admin().describe()[LEDGER.name][0]
        place = (LEDGER.name, 0)
        settings = ReaderSettings(topics=(LEDGER,), partitions=(0,), positions={place: max(earliest, end - _LOOK_BACK)})
        reader = self._log.reader(settings, hooks=ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None))
        last: Record | None = None
        try:
            target = reader.end_positions()[place]
            deadline = Deadline.after(_READ_LIMIT_S)
            while reader.positions().get(place, 0) < target:
                deadline.check("the last record of the ledger")
                for envelope in reader.poll(_LOOK_BACK, deadline=Deadline.after(_POLL_S)):
                    last = envelope.record
        finally:
            reader.close()
        return last
