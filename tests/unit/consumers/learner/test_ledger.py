"""The ledger: dense numbers, whole transactions, lineages across restarts, and fencing."""

from __future__ import annotations

import pytest

from consumers.learner.ledger import Ledger
from consumers.learner.outcomes import OutcomeDraft
from schemas.errors import CodecError, Fenced
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Manifest, MemberOutcome, Outcome, Version
from topics.catalog import LEDGER, WEIGHTS
from topics.clock import Deadline, ManualClock
from topics.log import Envelope, ReaderHooks, ReaderSettings, WriterSettings
from topics.memory import MemoryLog

P = 3
HOOKS = ReaderHooks(dead_letter=lambda _: pytest.fail("dead letter"), lost=lambda _: pytest.fail("lost"))


def draft(group: int, result: Result = Result.TRAINED) -> OutcomeDraft:
    member = MemberOutcome(member=0, attempt="a", result=result, version=Version(lineage=1, step=0), age=0)
    return OutcomeDraft(group=group, result=result, reason=None, attempt="a", members=(member,))


def manifest(step: int, *, lineage: int = 1) -> Manifest:
    return Manifest(
        run="r",
        version=Version(lineage=lineage, step=step),
        tensors=(),
        chunks=(),
        state_digest="0" * 64,
        num_bytes=0,
        seeds=(),
        created_unix_ms=0,
    )


def open_ledger(log: MemoryLog) -> Ledger:
    writer = log.writer(WriterSettings(transactional_id="rlweave.r.learner"))
    ledger = Ledger(writer, run="r", data_partitions=P, clock=ManualClock())
    ledger.recover(log, hooks=HOOKS, deadline=Deadline.after(5))
    return ledger


def everything(log: MemoryLog) -> list[Envelope]:
    reader = log.reader(ReaderSettings(topics=(LEDGER, WEIGHTS)), hooks=HOOKS)
    found: list[Envelope] = []
    while envelopes := reader.poll(100, deadline=Deadline.after(0)):
        found += envelopes
    reader.close()
    return found


def seqs(log: MemoryLog) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(P)]
    for each in everything(log):
        if isinstance(each.record, Outcome | LineageStarted | LedgerSealed):
            rows[each.partition].append(each.record.seq)
    return rows


def test_numbers_are_dense_per_partition_across_record_types_and_restarts() -> None:
    log = MemoryLog(run="r", data_partitions=P)
    first = open_ledger(log)
    assert first.begin_lineage(parent=0, branch_step=0, holder="h") == 1
    first.write_step(1, [draft(0), draft(3), draft(1)], manifest=manifest(1))
    first.write_outcomes(2, [draft(2, Result.DROPPED)])
    second = open_ledger(log)
    assert (second.view.num_closed, second.view.step) == (4, 1)
    assert second.begin_lineage(parent=1, branch_step=1, holder="h2") == 2
    assert [second.view.is_closed(n) for n in range(5)] == [True, True, False, True, False]
    second.write_outcomes(2, [draft(2), draft(5)])
    second.seal(2, num_groups=second.view.num_closed, reason="done")
    assert seqs(log) == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert open_ledger(log).view.sealed is not None
    assert open_ledger(log).view.num_closed == 5


def test_a_step_carries_lineage_and_step_and_its_manifest() -> None:
    log = MemoryLog(run="r", data_partitions=P)
    ledger = open_ledger(log)
    ledger.begin_lineage(parent=0, branch_step=0, holder="h")
    ledger.write_step(1, [draft(4)], manifest=manifest(1))
    ledger.write_step(2, [], manifest=manifest(2), retired=[Version(lineage=1, step=1)])
    records = everything(log)
    (outcome,) = [each.record for each in records if isinstance(each.record, Outcome)]
    assert (outcome.lineage, outcome.step, outcome.group) == (1, 1, 4)
    on_weights = [(each.key, each.record is None) for each in records if each.topic == "weights"]
    assert on_weights == [(b"1.1", False), (b"1.1", True), (b"1.2", False)]


def test_a_step_that_fails_in_the_middle_leaves_nothing() -> None:
    log = MemoryLog(run="r", data_partitions=P)
    ledger = open_ledger(log)
    ledger.begin_lineage(parent=0, branch_step=0, holder="h")
    broken = OutcomeDraft(group=1, result=Result.TRAINED, reason=None, attempt=None, members=("no member",))  # type: ignore[arg-type]
    with pytest.raises(Exception, match="MemberOutcome"):
        ledger.write_step(1, [draft(0), broken], manifest=manifest(1))
    assert [each for each in everything(log) if not isinstance(each.record, LineageStarted)] == []
    assert ledger.view.num_closed == 0
    ledger.write_step(1, [draft(0)])
    assert seqs(log)[0] == [0, 1]


def test_a_lineage_number_is_not_reused_when_the_ledger_was_lost() -> None:
    ledger = open_ledger(MemoryLog(run="r", data_partitions=P))
    assert ledger.begin_lineage(parent=3, branch_step=40, holder="h") == 4
    assert ledger.view.lineages.survives(3, 40)


def test_an_outcome_without_a_lineage_is_refused() -> None:
    ledger = open_ledger(MemoryLog(run="r", data_partitions=P))
    with pytest.raises(ValueError, match="begin_lineage"):
        ledger.write_step(1, [])
    ledger.write_outcomes(1, [])


def test_recovering_fences_the_predecessor_before_the_end_is_read() -> None:
    log = MemoryLog(run="r", data_partitions=P)
    old = open_ledger(log)
    old.begin_lineage(parent=0, branch_step=0, holder="old")
    new = open_ledger(log)
    with pytest.raises(Fenced):
        old.write_step(1, [draft(0)])
    assert new.begin_lineage(parent=0, branch_step=0, holder="new") == 2
    assert [each.record for each in everything(log) if isinstance(each.record, Outcome)] == []


def test_what_a_step_made_and_how_a_lineage_computes_is_kept_with_them() -> None:
    log = MemoryLog(run="r", data_partitions=P)
    ledger = open_ledger(log)
    ledger.begin_lineage(parent=0, branch_step=0, holder="h", facts={"torch": "2"})
    ledger.write_step(1, [draft(0), draft(1, Result.DROPPED)], manifest=manifest(1))
    records = [each.record for each in everything(log)]
    assert [each.facts for each in records if isinstance(each, LineageStarted)] == [{"torch": "2"}] * P
    outcomes = {each.group: each.state_digest for each in records if isinstance(each, Outcome)}
    assert outcomes == {0: "0" * 64, 1: None}


@pytest.mark.parametrize(("lineage", "seq"), [(2**31 - 2, 0), (7, 2**62)])
def test_a_forged_record_that_leaves_no_number_stops_the_learner(lineage: int, seq: int) -> None:
    """What it would write next is a dead letter to everybody who reads it."""
    log = MemoryLog(run="r", data_partitions=P)
    forged = LineageStarted(
        run="r", lineage=lineage, parent=0, branch_step=0, seq=seq, holder="x", started_unix_ms=0, facts={}
    )
    log.writer(WriterSettings()).write(LEDGER, forged, partition=0)
    before = len(everything(log))
    with pytest.raises(CodecError):
        open_ledger(log).begin_lineage(parent=0, branch_step=0, holder="h")
    assert len(everything(log)) == before == 1
