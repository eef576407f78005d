"""A manifest that no trained step stands behind is named, once, and only when the ledger had time to follow."""

from __future__ import annotations

from pipeline.history import LedgerView
from pipeline.unbacked import PATIENCE_S, UnbackedVersions
from schemas.records import LineageStarted, Outcome, Version
from topics.clock import ManualClock


def v(step: int, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def begun(ledger: LedgerView, *, lineage: int = 1, branch: int = 0) -> None:
    record = LineageStarted(
        run="r", lineage=lineage, parent=lineage - 1, branch_step=branch, seq=0, holder="h", started_unix_ms=0
    )
    ledger.add(0, record)


def trained(ledger: LedgerView, step: int) -> None:
    ledger.add(
        0,
        Outcome(run="r", group=step, lineage=1, step=step, seq=step, result="trained", members=(), closed_unix_ms=0),
    )


def test_it_is_named_once_and_late() -> None:
    clock, ledger = ManualClock(), LedgerView(1)
    begun(ledger)
    trained(ledger, 1)
    unbacked = UnbackedVersions(clock)
    listed = [v(1), v(2), v(10**9), v(0, lineage=5)]
    assert unbacked.look(listed, ledger=ledger) == []
    clock.advance(PATIENCE_S - 0.1)
    trained(ledger, 2)
    assert unbacked.look(listed, ledger=ledger) == []
    clock.advance(0.2)
    assert unbacked.look(listed, ledger=ledger) == [v(10**9), v(0, lineage=5)]
    clock.advance(100.0)
    assert unbacked.look(listed, ledger=ledger) == []


def test_a_ledger_that_follows_late_but_follows_accuses_nobody() -> None:
    clock, ledger = ManualClock(), LedgerView(1)
    begun(ledger)
    unbacked = UnbackedVersions(clock)
    for step in range(1, 9):
        unbacked.look([v(step)], ledger=ledger)
        clock.advance(PATIENCE_S * 0.9)
        trained(ledger, step)
        assert unbacked.look([v(step)], ledger=ledger) == []


def test_what_an_abandoned_branch_left_is_no_forgery() -> None:
    clock, ledger = ManualClock(), LedgerView(1)
    begun(ledger)
    trained(ledger, 9)
    begun(ledger, lineage=2, branch=4)
    unbacked = UnbackedVersions(clock)
    for _ in range(2):
        assert unbacked.look([v(9), v(4, lineage=2)], ledger=ledger) == []
        clock.advance(PATIENCE_S)
