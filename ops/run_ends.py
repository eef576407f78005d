"""What the log says of the end of a run: sealed, and scored to the last sample.

Role: tells the supervisor what exit codes cannot, and ends a part of a run whose learner is elsewhere.
Data in: the last records of the ledger, the lag of the reward consumers, `evaluations`. Data out: two answers.
Invariants: what the broker does not tell is taken as "no", so a run is not ended on a guess.
Failure: none; the broker being away is "no".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from consumers.rewards.settings import group_id
from ops.evaluations import evaluations_of
from ops.run_file import RunFile
from ops.supervisor.settings import SupervisorSettings
from pipeline.sources import open_source
from pipeline.stage import StopSignal
from producers.prompts.recovery import recover
from schemas.errors import LogError, RlweaveError
from schemas.records import LedgerSealed, Record
from topics.catalog import LEDGER, SAMPLES
from topics.clock import Clock, Deadline, SystemClock
from topics.log import Log, ReaderHooks, ReaderSettings
from topics.told import Told

_LOOK_BACK = 16  # offsets before the end of the ledger; transaction markers take some
_READ_LIMIT_S = 10.0
_POLL_S = 0.25
_LOOK_S = 2.0  # between two looks at the end of the ledger
_NO_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
_log = logging.getLogger(__name__)


class Ends(Protocol):
    """What `PartEnd` asks."""

    def is_complete(self) -> bool:
        """Whether the run has ended on purpose."""
        ...

    def is_drained(self) -> bool:
        """Whether every sample has been scored and the last version evaluated; unknown is no."""
        ...


class PartEnd:
    """Ends the part of a run whose learner is on another machine, once the run is complete.

    Args:
        stages: of this part; one with the learner sees its exit and needs nothing of this.
        stop: is asked for.
    """

    def __init__(
        self,
        ends: Ends,
        *,
        stages: Sequence[str],
        settings: SupervisorSettings,
        stop: StopSignal,
        clock: Clock | None = None,
    ) -> None:
        self._ends = ends
        self._scores = "reward" in stages
        self._watches = "learner" not in stages
        self._drain_s = settings.drain_s
        self._stop = stop
        self._clock = clock if clock is not None else SystemClock()
        self._look_at_s = self._clock.monotonic()
        self._drain: Deadline | None = None  # since the run is complete
        self.is_reached = False

    def turn(self) -> None:
        """Look, when it is time."""
        if not self._watches or self._stop.requested or self._clock.monotonic() < self._look_at_s:
            return
        if self._drain is None and self._ends.is_complete():
            self._drain = Deadline.after(self._drain_s, clock=self._clock)
        if self._drain is not None and (not self._scores or self._drain.expired or self._ends.is_drained()):
            self.is_reached = True
            self._stop.request("the run is complete")
        self._look_at_s = self._clock.monotonic() + _LOOK_S


class LogEnds:
    """Answers for one run; see `ops.supervisor.supervisor.RunEnds`."""

    def __init__(self, log: Log, *, run_file: RunFile) -> None:
        self._log = log
        self._run_file = run_file
        self._told = Told(_log)

    @property
    def grace_s(self) -> float:
        """Time that processes have for an orderly stop."""
        return self._run_file.run.stop_grace_s

    def is_complete(self) -> bool:
        """Whether the ledger ends with a seal; a lineage that began after one reopened the run."""
        return self.seal() is not None

    def seal(self) -> LedgerSealed | None:
        """The seal that the ledger ends with; None: there is none, or it is not known."""
        try:
            seal = self.known_seal()
        except RlweaveError as error:
            text = f"whether the run is complete is not known: {error.message}"
            self._told.warn("seal", type(error).__name__, text=text)
            return None
        self._told.works("seal")
        return seal

    def known_seal(self) -> LedgerSealed | None:
        """The seal that the ledger ends with; None: there is none.

        Raises:
            LogError, DeadlineExceeded: the broker failed or is too slow, so it is not known.
        """
        last = self._last_record()
        return last if isinstance(last, LedgerSealed) else None

    def nothing_is_left(self, seal: LedgerSealed) -> bool:
        """Whether a sealed run has nothing to do under its present settings: no more steps, or no more prompts.

        Raises:
            SettingsError, PluginError: the prompt source cannot be opened.
            TopicMismatch: the prompts topic is not dense.
            LogError, DeadlineExceeded: the broker failed or is too slow.
        """
        run = self._run_file.run
        if seal.step >= run.max_steps:
            return True
        source = open_source(self._run_file.prompts.source, seed=run.seed)
        cursor = recover(self._log, source=source, hooks=_NO_HOOKS, deadline=Deadline.after(_READ_LIMIT_S))
        return source.num_items is not None and cursor.next_index >= source.num_items

    def is_drained(self) -> bool:
        """Whether every reward consumer has committed all samples, and the last version was evaluated on every set;
        what is not known counts as not."""
        return self._is_scored() and self._is_evaluated()

    def _is_evaluated(self) -> bool:
        """Whether every set has an evaluation of the step that the run is sealed with."""
        sets = self._run_file.evaluation
        if not sets:
            return True
        seal = self.seal()
        try:
            done = {each.name for each in evaluations_of(self._log) if seal and each.version.step >= seal.step}
        except RlweaveError as error:
            text = f"whether the last version was evaluated is not known: {error.message}"
            self._told.warn("evaluations", type(error).__name__, text=text)
            return False
        self._told.works("evaluations")
        return sets.keys() <= done

    def _is_scored(self) -> bool:
        run, admin = self._run_file.run.name, self._log.admin()
        groups = [group_id(run, name, settings=settings) for name, settings in self._run_file.rewards.items()]
        try:
            return all(lag.lag_records == 0 for group in groups for lag in admin.lag(group, [SAMPLES]))
        except LogError as error:
            text = f"the lag of the rewards is not known: {error.message}"
            self._told.warn("lag", type(error).__name__, text=text)
            return False

    def _last_record(self) -> Record | None:
        """Of partition 0: lineages and seals are on every one, and nothing follows a seal but a lineage."""
        earliest, end = self._log.admin().describe()[LEDGER.name][0]
        place = (LEDGER.name, 0)
        settings = ReaderSettings(topics=(LEDGER,), partitions=(0,), positions={place: max(earliest, end - _LOOK_BACK)})
        reader = self._log.reader(settings, hooks=_NO_HOOKS)
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
