"""Where every outcome of a run stands on the ledger, and which sample ids were not trained, and why.

Role: behind the table of drops and the list of samples: a page of them costs no reading of samples.
Data in: the ledger, its newest part first, a slice per `turn`, small ones first, so that there is soon something to
show. Data out: counts and pages, newest first.
Invariants: memory is bounded: 38 bytes per outcome, 34 per lost id, 20 per gap, at most `max_outcomes`, `max_lost` and
`MAX_APART` of them, and no more than one record of a slice is held decoded; what is counted and listed is of the
surviving history (promise 3) as far as it is read, and `share_read` says how far.
Failure: errors of the log; bytes that are no record are passed over, the audit counts them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.audit.columns import Words
from ops.dashboard.ledger_rows import ApartRow, Closed, LostRow, OutcomeRow, closed
from ops.dashboard.rows import Rows
from ops.replay.sources import Source, decode
from pipeline.history import Lineages
from schemas.errors import CodecError
from schemas.records import LineageStarted, Outcome
from topics.catalog import LEDGER, partition_of

SLICE_OFFSETS = 2_000  # per partition and turn, at most
FIRST_SLICE = 125  # of the first turn; then twice as many each time
MAX_OUTCOMES = 4_000_000
MAX_LOST = 4_000_000
MAX_APART = 400_000
_OUTCOMES = (
    ("group", "<i8"),
    ("offset", "<i8"),
    ("at_ms", "<i8"),
    ("lineage", "<i4"),
    ("step", "<i4"),
    ("result", "<i2"),
    ("reason", "<i2"),
    ("size", "<i2"),
)
_LOST = (
    ("row", "<i8"),
    ("at_ms", "<i8"),
    ("member", "<i4"),
    ("reason", "<i2"),
    ("age", "<i4"),
    ("born_lineage", "<i4"),
    ("born_step", "<i4"),
)
_APART = (
    ("row", "<i8"),
    ("member", "<i4"),
    ("mean", "<f4"),
    ("most", "<f4"),
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some rows of many."""

    rows: tuple[LostRow, ...] | tuple[OutcomeRow, ...] | tuple[ApartRow, ...]
    num_all: int  # as far as the ledger is read


class LedgerIndex:
    """See the module. `turn` is for one thread, the rest for any.

    Args:
        source: the run.
    """

    def __init__(self, source: Source, *, max_outcomes: int = MAX_OUTCOMES, max_lost: int = MAX_LOST) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._outcomes = Rows(_OUTCOMES, limit=max_outcomes)
        self._lost = Rows(_LOST, limit=max_lost)
        self._apart = Rows(_APART, limit=MAX_APART)
        self._words = Words()
        self._lineages = Lineages()
        self._read: dict[int, tuple[int, int]] = {}  # partition -> offsets that were read: [first, end)
        self._window: dict[int, tuple[int, int]] = {}
        self._slice_offsets = FIRST_SLICE

    def turn(self, *, slice_offsets: int | None = None) -> bool:
        """Read what is new, and one slice more of the past; True: there is more to read."""
        if slice_offsets is None:
            slice_offsets, self._slice_offsets = self._slice_offsets, min(SLICE_OFFSETS, 2 * self._slice_offsets)
        window = self._source.window(LEDGER)
        for part, (_, end) in window.items():
            self._read.setdefault(part, (end, end))
        new = {part: (self._read[part][1], end) for part, (_, end) in window.items()}
        old = {
            part: (max(low, self._read[part][0] - slice_offsets), self._read[part][0])
            for part, (low, _) in window.items()
        }
        with self._lock:
            self._window = dict(window)
        for ranges in (new, {} if self.is_full else old):
            self._take(ranges)
        return self.share_read < 1 and not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether older outcomes are left out, since memory is bounded."""
        return self._outcomes.is_full or self._lost.is_full

    @property
    def share_read(self) -> float:
        """Part of the ledger that is read, of what was there at the last turn."""
        with self._lock:
            size = sum(end - low for low, end in self._window.values())
            done = sum(
                min(self._read[part][1], end) - max(self._read[part][0], low)
                for part, (low, end) in self._window.items()
            )
        return 1.0 if size == 0 and self._window else min(1.0, done / size) if size else 0.0

    def drops(self) -> dict[str, int]:
        """Sample ids per reason, most first."""
        with self._lock:
            lost, alive = self._lost.view(), self._alive()
            reasons = lost["reason"][alive[lost["row"]]]
            numbers, counts = np.unique(reasons, return_counts=True)
            found = Counter({self._words.word(int(n)): int(c) for n, c in zip(numbers, counts, strict=True)})
        return dict(found.most_common())

    def lost(self, *, reason: str | None, skip: int, limit: int) -> Page:
        """Sample ids that were dropped or failed, newest first.

        Args:
            reason: only for this one; None: for any.
        """
        with self._lock:
            table, rows = self._lost.view(), self._outcomes.view()
            keep = self._alive()[table["row"]]
            if reason is not None:
                keep &= table["reason"] == self._words.number(reason)
            places = _newest(np.flatnonzero(keep), times=table["at_ms"], upto=skip + limit)[skip:]
            found = tuple(self._lost_row(table[at], rows[table["row"][at]]) for at in places)
        return Page(rows=found, num_all=int(keep.sum()))

    def outcomes(self, *, result: str | None, skip: int, limit: int) -> Page:
        """Outcomes of the surviving history, newest first.

        Args:
            result: only with this one; None: with any.
        """
        with self._lock:
            table, keep = self._outcomes.view(), self._alive()
            if result is not None:
                keep = keep & (table["result"] == self._words.number(result))
            places = _newest(np.flatnonzero(keep), times=table["at_ms"], upto=skip + limit)[skip:]
            found = tuple(self._outcome_row(table[at], is_void=False) for at in places)
        return Page(rows=found, num_all=int(keep.sum()))

    def apart(self, *, skip: int, limit: int) -> Page:
        """Trained samples whose gaps are kept, furthest apart first."""
        with self._lock:
            table, rows = self._apart.view(), self._outcomes.view()
            places = np.flatnonzero(self._alive()[table["row"]])
            order = places[np.argsort(-table["mean"][places], kind="stable")][skip : skip + limit]
            found = tuple(_apart_row(table[at], rows[table["row"][at]]) for at in order)
        return Page(rows=found, num_all=len(places))

    def of_group(self, group: int) -> list[OutcomeRow]:
        """All outcomes of a group, void ones too, in the order of their offsets, as far as the ledger is read."""
        with self._lock:
            table, alive = self._outcomes.view(), self._alive()
            places = np.flatnonzero(table["group"] == group)
            found = [self._outcome_row(table[at], is_void=not alive[at]) for at in places]
        return sorted(found, key=lambda row: row.offset)

    def _take(self, ranges: dict[int, tuple[int, int]]) -> None:
        wanted = {part: bounds for part, bounds in ranges.items() if bounds[0] < bounds[1]}
        found = [] if not wanted else list(self._noted(wanted))
        with self._lock:
            for each in found:
                self._add(each)
            for part, (first, end) in wanted.items():
                before = self._read[part]
                self._read[part] = (min(first, before[0]), max(end, before[1]))

    def _noted(self, ranges: dict[int, tuple[int, int]]) -> Iterator[LineageStarted | Closed]:
        for raw in self._source.read(LEDGER, ranges):
            try:
                record = decode(LEDGER, raw)
            except CodecError:
                continue
            if isinstance(record, LineageStarted):
                yield record
            elif isinstance(record, Outcome):
                yield closed(raw, record)

    def _add(self, found: LineageStarted | Closed) -> None:
        if isinstance(found, LineageStarted):
            self._lineages.add(found)
            return
        row = len(self._outcomes)
        result, reason = self._words.number(found.result), self._words.number(found.reason)
        if not self._outcomes.append(*found[:5], result, reason, found.size):
            return
        for lost in found.lost:
            number = self._words.number(lost.reason)
            self._lost.append(row, found.at_ms, lost.member, number, lost.age, lost.born_lineage, lost.born_step)
        for apart in found.apart:
            self._apart.append(row, *apart)

    def _alive(self) -> NDArray[np.bool_]:
        table = self._outcomes.view()
        alive = np.zeros(len(table), dtype=np.bool_)
        for lineage, limit in self._lineages.limits.items():
            alive |= (table["lineage"] == lineage) & (table["step"] <= limit)
        # The newest part is read first, and may tell of no beginning: then nothing is known to be void.
        return alive if self._lineages.current else np.ones(len(table), dtype=np.bool_)

    def _lost_row(self, lost: np.void, outcome: np.void) -> LostRow:
        born = "" if lost["born_lineage"] < 0 else f"{lost['born_lineage']}.{lost['born_step']}"
        return LostRow(
            group=int(outcome["group"]),
            member=int(lost["member"]),
            reason=self._words.word(int(lost["reason"])),
            at_ms=int(lost["at_ms"]),
            lineage=int(outcome["lineage"]),
            step=int(outcome["step"]),
            age=None if lost["age"] < 0 else int(lost["age"]),
            born=born,
        )

    def _outcome_row(self, row: np.void, *, is_void: bool) -> OutcomeRow:
        group = int(row["group"])
        return OutcomeRow(
            group=group,
            partition=partition_of(group, self._source.data_partitions),
            offset=int(row["offset"]),
            at_ms=int(row["at_ms"]),
            lineage=int(row["lineage"]),
            step=int(row["step"]),
            result=self._words.word(int(row["result"])),
            reason=self._words.word(int(row["reason"])),
            is_void=is_void,
        )


def _apart_row(apart: np.void, outcome: np.void) -> ApartRow:
    return ApartRow(
        group=int(outcome["group"]),
        member=int(apart["member"]),
        at_ms=int(outcome["at_ms"]),
        lineage=int(outcome["lineage"]),
        step=int(outcome["step"]),
        mean=round(float(apart["mean"]), 6),
        most=round(float(apart["most"]), 6),
    )


def _newest(places: NDArray[np.intp], *, times: NDArray[np.int64], upto: int) -> NDArray[np.intp]:
    """The first `upto` places by time, latest first; of the same time the one that was read last."""
    own = times[places]
    if len(places) > 4 * upto:  # no need to sort what is not shown
        edge = np.partition(own, len(own) - upto)[len(own) - upto]
        places, own = places[own >= edge], own[own >= edge]
    order = np.lexsort((-places, -own))
    found: NDArray[np.intp] = places[order][:upto]
    return found
