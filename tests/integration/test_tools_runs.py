"""`topics`, `status`, `runs` and the oracle on a real broker, over a hand-written run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ops.runs import RunAlive, delete_run, list_runs
from schemas.errors import SettingsError
from schemas.records import StageEvent, Version
from tests.integration.conftest import Written
from tests.unit.ops.little_run import PARTITIONS, RUN, prompt
from topics.catalog import (
    DEAD_LETTERS,
    EVENTS,
    PROMPTS,
    SAMPLES,
    full_name,
)
from topics.clock import Deadline, SystemClock
from topics.kafka.raw import RawLog
from topics.log import ReaderHooks, ReaderSettings, WriterSettings

pytestmark = pytest.mark.integration


ORACLE = Path(__file__).parents[2] / "ops" / "chaos" / "oracle.py"


def _oracle(written: Written, path: Path, lines: list[dict[str, object]]) -> tuple[int, dict[str, object]]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, str(ORACLE), "--bootstrap", written.bootstrap, "--run", written.run]
    done = subprocess.run(
        [*command, "--oracle-file", str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, json.loads(done.stdout)


def _line(lineage: int, step: int, *groups: int) -> dict[str, object]:
    ids = [f"{RUN}/{group}/{member}" for group in groups for member in (0, 1)]
    return {"lineage": lineage, "step": step, "sample_ids": ids}


def test_the_oracle_agrees_along_the_surviving_history_only(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "oracle.jsonl"
    whole = [_line(1, 1, 0, 1), _line(1, 2, 2, 3), _line(2, 2, 0, 1), _line(2, 2, 2, 4), _line(2, 3, 5)]
    code, verdict = _oracle(written, path, whole)  # 1.2 is void, 2.2 was written twice, 2.3 was never committed
    assert (code, verdict["trained_ids"]) == (0, 8), verdict
    code, verdict = _oracle(written, path, whole[1:])
    assert (code, verdict["only_in_ledger"]) == (
        1,
        [f"{RUN}/{group}/{member}" for group in (0, 1) for member in (0, 1)],
    )
    code, verdict = _oracle(written, path, [*whole[:3], _line(2, 2, 2, 4, 5)])
    assert (code, verdict["only_in_oracle"]) == (1, [f"{RUN}/5/0", f"{RUN}/5/1"])
    code, verdict = _oracle(written, path, [*whole[:3], _line(2, 2, 2, 4, 0)])
    assert (code, verdict["twice"]) == (1, [f"{RUN}/0/0", f"{RUN}/0/1"])


def test_the_oracle_names_ids_that_a_sealed_run_left_open(written: Written, tmp_path: Path) -> None:
    writer = written.log.writer(WriterSettings())
    writer.write(PROMPTS, prompt(6))
    writer.flush(deadline=Deadline.after(10))
    writer.close(deadline=Deadline.after(5))
    code, verdict = _oracle(written, tmp_path / "oracle.jsonl", [_line(1, 1, 0, 1), _line(2, 2, 2, 4)])
    assert (code, verdict["lost"]) == (1, [f"{RUN}/6/0", f"{RUN}/6/1"])


def test_topics_shows_what_is_there_and_what_is_wrong(written: Written) -> None:
    shown = written.call("topics", "--run", written.run)
    assert shown.return_value == 0, shown.output
    assert [line for line in shown.output.splitlines() if len(line) > 80] == []
    by_name = {
        each["topic"]: each for each in json.loads(written.call("topics", "--run", written.run, "--json").output)
    }
    assert (by_name["samples"]["partitions"], by_name["samples"]["num_offsets"]) == (PARTITIONS, 10)
    RawLog(written.bootstrap).delete([full_name(written.run, DEAD_LETTERS)])
    deadline = Deadline.after(20)
    while (wrong := written.call("topics", "--run", written.run)).return_value == 0:
        deadline.check("the broker to list the topic no more")
    assert wrong.return_value == 1
    assert "the topic does not exist" in wrong.output


def _event(
    kind: str, name: str, seq: int, *, instance: str = "rollout-a", unix_ms: int = 0, **gauges: float
) -> StageEvent:
    return StageEvent(
        run=RUN,
        stage="rollout",
        instance=instance,
        kind=kind,
        name=name,
        seq=seq,
        gauges=gauges,
        details={"phase": "generating"} if kind == "heartbeat" else {},
        version=Version(lineage=2, step=2),
        monotonic_s=float(seq),
        unix_ms=unix_ms,
    )


def _say(written: Written, *events: StageEvent) -> None:
    writer = written.log.writer(WriterSettings())
    for event in events:
        writer.write(EVENTS, event)
    writer.flush(deadline=Deadline.after(10))
    writer.close(deadline=Deadline.after(5))


def test_status_shows_processes_lag_and_ledger(written: Written) -> None:
    now_ms = SystemClock().unix_ms()
    _say(
        written,
        _event("phase_began", "generating", 0, unix_ms=now_ms),
        _event("heartbeat", "heartbeat", 1, unix_ms=now_ms, running_sequences=3.0),
        _event("notice", "stopped", 0, instance="rollout-b", unix_ms=now_ms),
    )
    group = f"rlweave.{written.run}.reward.exact"
    reader = written.log.reader(
        ReaderSettings(topics=(SAMPLES,), group=group),
        hooks=ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None),
    )
    reader.poll(1, deadline=Deadline.after(60))
    reader.commit({("samples", 0): 2})
    seen = json.loads(written.call("status", "--run", written.run, "--json").output)
    assert (seen["lineage"], seen["step"], seen["sealed"]) == (2, 2, True)
    assert seen["groups"] == {"admitted": 6, "closed": 6, "open": 0}
    first = seen["processes"][0]
    assert (first["instance"], first["phase"], first["version"]) == ("rollout-a", "generating", "2.2")
    (lag,) = seen["lag"]
    assert (lag["topic"], lag["lag_records"], lag["partitions_unknown"]) == ("samples", None, 1)
    text = written.call("status", "--run", written.run).output
    assert "unknown" in text
    assert "running_sequences=3" in text
    assert "rollout-b" not in text
    reader.commit({("samples", 1): 4})
    reader.close()
    (lag,) = json.loads(written.call("status", "--run", written.run, "--json").output)["lag"]
    assert lag["lag_records"] == 4


class Deleting(RawLog):
    """Somebody deletes a run as soon as it is known which runs there are."""

    run = ""

    def partition_counts(self) -> dict[str, int]:
        counts = super().partition_counts()
        names = [name for name in counts if name.startswith(f"rlweave.{self.run}.")]
        self.delete(names)
        deadline = Deadline.after(60)
        while names and not super().partition_counts().keys().isdisjoint(names):
            deadline.check("the topics to be gone")
        return counts


def test_a_run_that_is_deleted_while_runs_are_listed_is_no_error(written: Written, tmp_path: Path) -> None:
    log = Deleting(written.bootstrap)
    log.run = written.run
    assert written.run not in {each.name for each in list_runs(log, runs_dir=tmp_path)}


def test_runs_are_listed_and_deleted_unless_alive(written: Written, tmp_path: Path) -> None:
    folder = tmp_path / written.run
    folder.mkdir()
    _say(written, _event("heartbeat", "heartbeat", 0, unix_ms=SystemClock().unix_ms()))
    listed = {each.name: each for each in list_runs(RawLog(written.bootstrap), runs_dir=tmp_path)}
    assert (listed[written.run].state, listed[written.run].step) == ("finished", 2)
    ended = threading.Event()
    writer = written.log.writer(WriterSettings())  # one that is connected: only so long is waited for a beat

    def beat() -> None:
        while not ended.wait(0.1):
            writer.write(EVENTS, _event("heartbeat", "heartbeat", 0))
            writer.flush(deadline=Deadline.after(30))

    writer.write(EVENTS, _event("heartbeat", "heartbeat", 0))
    writer.flush(deadline=Deadline.after(30))
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(RunAlive, match="at work"):
            delete_run(RawLog(written.bootstrap), written.run, folder=folder)
        assert folder.exists()
    finally:
        ended.set()
        heart.join()
        writer.close(deadline=Deadline.after(30))
    arguments = ["runs", "delete", written.run, "--files", "--dir", str(tmp_path)]
    with pytest.raises(SettingsError, match="no terminal to say yes on"):
        written.call(*arguments)
    assert folder.exists()
    deleted = written.call(*arguments, "--yes")
    assert deleted.exit_code == 0, deleted.output
    assert not folder.exists()
    assert full_name(written.run, SAMPLES) not in RawLog(written.bootstrap).partition_counts()
