"""What the ledger says of the past: lineages, closed groups, and the history that survives (promises 2 and 3).

Role: the one reading of the ledger that the prompt producer (credit), rollouts (skip), the learner and the audit share.
Data in and out: ledger records in partition order; answers about groups and versions.
Invariants: the surviving history is the path from the current lineage to its ancestors, each up to the branch steps
on the way; a group is closed when an outcome on that path says so. Partitions may be read in any interleaving and
records may be added again: the answers at the end are the same. A branch that was void comes back when a later
lineage starts from it, as nothing is forgotten. Memory is 17 bytes per outcome.
Failure: a record on a partition it does not belong to is a `RecordInvalid`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np

from schemas.errors import RecordInvalid
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Outcome, Version
from topics.catalog import partition_of

LedgerRecord = Outcome | LineageStarted | LedgerSealed
_NO_LIMIT = 2**31 - 1  # of steps in a lineage that nothing branched from


class Lineages:
    """The tree of lineages, and the path of it that survives."""

    def __init__(self) -> None:
        self._origins: dict[int, tuple[int, int]] = {}  # lineage -> (parent, branch step)
        self._limits: dict[int, int] = {}  # lineage on the surviving path -> its last surviving step

    @property
    def current(self) -> int:
        """The highest lineage seen; 0: none."""
        return max(self._origins, default=0)

    def add(self, record: LineageStarted) -> bool:
        """Learn of a lineage; False when it was known (one copy is written to every ledger partition)."""
        if record.lineage in self._origins:
            return False
        self._origins[record.lineage] = (record.parent, record.branch_step)
        self._limits = self._path()
        return True

    def survives(self, lineage: int, step: int) -> bool:
        """Whether (lineage, step) is on the path of the current lineage: its own steps all, an ancestor's up to the
        lowest branch step on the way. An unknown lineage is on no path."""
        return step <= self._limits.get(lineage, -1)

    def is_known(self, lineage: int) -> bool:
        """Whether this lineage began, or another one names it as its parent."""
        return lineage in self._origins or lineage in self._limits

    @property
    def limits(self) -> Mapping[int, int]:
        """Last surviving step per lineage of the surviving path."""
        return self._limits

    @property
    def origins(self) -> Mapping[int, tuple[int, int]]:
        """(parent, branch step) of every lineage that began."""
        return self._origins

    def _path(self) -> dict[int, int]:
        limits: dict[int, int] = {}
        lineage, limit = self.current, _NO_LIMIT
        while lineage > 0 and lineage not in limits:
            limits[lineage] = limit
            lineage, branch_step = self._origins.get(lineage, (0, 0))
            limit = min(limit, branch_step)
        return limits


class ClosedSet:
    """A set of group numbers, exact for ever: all below a watermark, and single ones above it."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._watermark = 0  # every number below it is a member
        self._above: set[int] = set()
        for number in numbers:
            self.add(number)

    @property
    def watermark(self) -> int:
        """The lowest number that is not a member."""
        return self._watermark

    @property
    def above(self) -> list[int]:
        """The members above the watermark, ascending."""
        return sorted(self._above)

    def add(self, number: int) -> None:
        """Add one number, 0 or more; adding it again changes nothing.

        Raises:
            ValueError: the number is negative.
        """
        if number < 0:
            raise ValueError(f"group numbers are 0 or more, got {number}")
        if number < self._watermark:
            return
        self._above.add(number)
        while self._watermark in self._above:
            self._above.remove(self._watermark)
            self._watermark += 1

    def __contains__(self, number: int) -> bool:
        return number < self._watermark or number in self._above

    def __len__(self) -> int:
        return self._watermark + len(self._above)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClosedSet):
            return NotImplemented
        return self._watermark == other._watermark and self._above == other._above

    __hash__ = None  # type: ignore[assignment]  # mutable

    def copy(self) -> ClosedSet:
        """An independent copy."""
        return ClosedSet.from_json(self.to_json())

    def to_json(self) -> dict[str, int | list[int]]:
        """Values for JSON: `watermark`, and `above` in ascending order."""
        return {"watermark": self._watermark, "above": sorted(self._above)}

    @classmethod
    def from_json(cls, values: Mapping[str, int | list[int]]) -> ClosedSet:
        """The set `to_json` described.

        Raises:
            ValueError: the values do not have that form.
        """
        watermark, above = values.get("watermark"), values.get("above")
        refused = ValueError(f"a closed set is a watermark and a list `above`, got {dict(values)!r:.200}")
        if not isinstance(watermark, int) or not isinstance(above, list):
            raise refused
        if not all(isinstance(number, int) and number >= 0 for number in (watermark, *above)):
            raise refused
        found = cls()
        found._watermark = watermark
        for number in above:
            found.add(number)
        return found


class LedgerView:
    """Folds ledger records into what is true in the surviving history.

    Args:
        data_partitions: P of the run.
    """

    def __init__(self, data_partitions: int) -> None:
        self._data_partitions = data_partitions
        self.lineages = Lineages()
        self._groups = array("q")  # one entry per outcome read, void ones included
        self._lineage_of = array("i")
        self._steps = array("i")
        self._trained = array("b")
        self._closed = ClosedSet()
        self._step = 0
        self._seals: dict[int, LedgerSealed] = {}  # by lineage
        self._next_seq = [0] * data_partitions

    def add(self, partition: int, record: LedgerRecord) -> None:
        """Learn one record; those of one partition in the order of their offsets.

        Raises:
            RecordInvalid: an outcome on another partition than its group's.
        """
        self._next_seq[partition] = max(self._next_seq[partition], record.seq + 1)
        if isinstance(record, Outcome):
            self._add_outcome(partition, record)
        elif isinstance(record, LineageStarted):
            if self.lineages.add(record):
                self._rebuild()
        else:
            self._seals[record.lineage] = record

    def is_closed(self, group: int) -> bool:
        """Whether the group has an outcome in the surviving history."""
        return group in self._closed

    @property
    def num_closed(self) -> int:
        """Groups with an outcome in the surviving history."""
        return len(self._closed)

    @property
    def closed(self) -> ClosedSet:
        """A copy of the closed groups of the surviving history."""
        return self._closed.copy()

    @property
    def step(self) -> int:
        """The highest step of the surviving history that trained something; 0: none."""
        return self._step

    @property
    def horizon(self) -> Version | None:
        """The newest version that can exist: of the current lineage, with the last step trained, or the one it began
        with (a learner publishes that first); None: no lineage has begun."""
        current = self.lineages.current
        if current == 0:
            return None
        branch_step = max((step for lineage, step in self.lineages.limits.items() if lineage != current), default=0)
        return Version(lineage=current, step=max(self._step, branch_step))

    def is_made(self, version: Version) -> bool:
        """Whether the surviving history contains the version and had come that far.

        A manifest and the outcomes of its step are one transaction, so a version beyond the last trained step is one
        that the ledger has not been read far enough for, or that no learner made.
        """
        horizon = self.horizon
        if horizon is None or version.step > horizon.step:
            return False
        return self.lineages.survives(version.lineage, version.step)

    @property
    def sealed(self) -> LedgerSealed | None:
        """The seal of the current lineage; a later lineage reopens a sealed run."""
        return self._seals.get(self.lineages.current)

    def next_seq(self, partition: int) -> int:
        """The sequence number that follows the highest one seen on this partition."""
        return self._next_seq[partition]

    def _add_outcome(self, partition: int, outcome: Outcome) -> None:
        belongs = partition_of(outcome.group, self._data_partitions)
        if belongs != partition:
            raise RecordInvalid(
                f"outcome of group {outcome.group} on ledger partition {partition}; with {self._data_partitions} "
                f"partitions it belongs on {belongs}",
                reason="wrong_partition",
                hint="the run's partition count must be the one its topics were made with",
            )
        trained = outcome.result == Result.TRAINED
        self._groups.append(outcome.group)
        self._lineage_of.append(outcome.lineage)
        self._steps.append(outcome.step)
        self._trained.append(trained)
        if self.lineages.survives(outcome.lineage, outcome.step):
            self._closed.add(outcome.group)
            if trained:
                self._step = max(self._step, outcome.step)

    def _rebuild(self) -> None:
        """Apply a new path to every outcome read: some become void, some of an older branch may come back."""
        lineage_of = np.array(self._lineage_of, dtype=np.int32)
        steps = np.array(self._steps, dtype=np.int32)
        alive = np.zeros(len(steps), dtype=bool)
        for lineage, limit in self.lineages.limits.items():
            alive |= (lineage_of == lineage) & (steps <= limit)
        groups = np.unique(np.array(self._groups, dtype=np.int64)[alive])
        self._closed = ClosedSet(groups.tolist())
        trained = steps[alive & np.array(self._trained, dtype=bool)]
        self._step = int(trained.max()) if trained.size else 0
