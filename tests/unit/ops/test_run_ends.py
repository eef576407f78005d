"""Whether a run is complete, as the ledger says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ops.run_ends import LogEnds
from ops.run_file import RunFile, parse_run_file
from pipeline.settings import RunSettings
from pipeline.sources import SourceSettings, open_source
from schemas.records import LedgerSealed, LineageStarted
from tests.unit.consumers.learner.material import prompt
from topics.catalog import LEDGER, PROMPTS
from topics.clock import Deadline
from topics.log import Writer, WriterSettings
from topics.memory import MemoryLog


def run_file(name: str, *, files: tuple[str, ...] = ("tasks.jsonl",), max_steps: int = 3) -> RunFile:
    values = {
        "run": {"name": name, "max_steps": max_steps},
        "model": {"path": "model"},
        "prompts": {"source": {"files": list(files), "epochs": 1}},
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


def test_a_sealed_run_has_more_to_do_when_more_steps_are_asked_for_and_prompts_are_left(
    memory_log: MemoryLog, tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    seal = LedgerSealed(run="r", lineage=1, step=3, seq=1, num_groups=1, reason="a test", sealed_unix_ms=0)

    def nothing_is_left(max_steps: int) -> bool:
        chosen = run_file(memory_log.run, files=(str(tasks),), max_steps=max_steps)
        return LogEnds(memory_log, run_file=chosen).nothing_is_left(seal)

    assert nothing_is_left(3)
    assert not nothing_is_left(4), "its only prompt was not written yet"
    name = open_source(SourceSettings(files=(tasks,), epochs=1), seed=RunSettings(name="r").seed).name
    writer = memory_log.writer(WriterSettings())
    writer.write(PROMPTS, replace(prompt(0), source=name))
    writer.flush(deadline=Deadline.after(5))
    assert nothing_is_left(4)
    tasks.write_text(tasks.read_text() * 2)  # another source by its size: it is walked from its beginning
    assert not nothing_is_left(4)
