"""Whether a run is complete, as the ledger says."""

from __future__ import annotations

from ops.run_ends import LogEnds
from ops.run_file import RunFile, parse_run_file
from schemas.records import LedgerSealed, LineageStarted
from topics.catalog import LEDGER
from topics.clock import Deadline
from topics.log import Writer, WriterSettings
from topics.memory import MemoryLog


def run_file(name: str) -> RunFile:
    values = {
        "run": {"name": name},
        "model": {"path": "model"},
        "prompts": {"source": {"files": ["tasks.jsonl"]}},
        "rewards": {"sum": {"plugin": "number_match"}},
    }
    return parse_run_file(values, origin="a test")  # type: ignore[arg-type]  # nested values


def begin(writer: Writer, lineage: int, *, seq: int) -> None:
    started = LineageStarted(
        run="r", lineage=lineage, parent=lineage - 1, branch_step=0, seq=seq, holder="h", started_unix_ms=0
    )
    writer.write(LEDGER, started, partition=0)
    writer.flush(deadline=Deadline.after(5))


def test_a_run_is_complete_from_its_seal_until_a_later_lineage_reopens_it(memory_log: MemoryLog) -> None:
    ends = LogEnds(memory_log, run_file=run_file(memory_log.run))
    writer = memory_log.writer(WriterSettings())
    assert not ends.is_complete()
    begin(writer, 1, seq=0)
    assert not ends.is_complete()
    seal = LedgerSealed(run="r", lineage=1, step=3, seq=1, num_groups=0, reason="a test", sealed_unix_ms=0)
    writer.write(LEDGER, seal, partition=0)
    writer.flush(deadline=Deadline.after(5))
    assert ends.is_complete()
    begin(writer, 2, seq=2)
    assert not ends.is_complete()
