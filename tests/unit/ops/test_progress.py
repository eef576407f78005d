"""What a person sees of a run, folded from events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ops.progress import Progress
from ops.run_view import RunView
from schemas.records import LedgerSealed, LineageStarted, Record, StageEvent
from tests.unit.ops.little_run import PARTITIONS, RUN, little_run
from tests.unit.ops.report.made_run import settings
from topics.catalog import EVENTS, LEDGER
from topics.clock import Deadline
from topics.log import WriterSettings
from topics.memory import MemoryLog


def event(
    instance: str,
    *,
    kind: str = "heartbeat",
    name: str = "heartbeat",
    at_s: float = 0.0,
    gauges: Mapping[str, float] | None = None,
    details: Mapping[str, str] | None = None,
) -> StageEvent:
    stage = instance.partition("-")[0].partition(".")[0]
    return StageEvent(
        run=RUN,
        stage=stage,
        instance=instance,
        kind=kind,
        name=name,
        seq=0,
        gauges=gauges if gauges is not None else {},
        details=details if details is not None else {},
        monotonic_s=at_s,
        unix_ms=0,
    )


def test_a_killed_learner_is_succeeded_and_rollouts_add_up() -> None:
    view = RunView()
    for instance, groups in (("learner-a", 60.0), ("learner-b", 20.0), ("rollout-a", 5.0), ("rollout-b", 6.0)):
        view.add(event(instance, gauges={"open_groups": groups}))
    assert view.gauge("learner", "open_groups") == 20.0
    assert view.gauge("rollout", "open_groups") == 11.0
    view.add(event("learner-a", gauges={"open_groups": 60.0}))
    assert view.gauge("learner", "open_groups") == 20.0, "a late word of the old one changes nothing"


def test_tokens_per_second_are_those_between_two_heartbeats() -> None:
    view = RunView()
    view.add(event("rollout-a", at_s=10.0, gauges={"tokens_generated": 100.0}))
    assert view.tokens_per_s(0.0) == 0.0
    view.add(event("rollout-a", at_s=12.0, gauges={"tokens_generated": 500.0}))
    assert view.tokens_per_s(0.0) == 200.0


def test_lag_is_summed_over_its_labels() -> None:
    view = RunView()
    view.add(event("scheduler-a", gauges={"lag_records{group=g,topic=s}": 7.0, "lag_records{group=h,topic=x}": 3.0}))
    assert view.lag_records == 10.0


def test_a_stage_that_stopped_is_gone() -> None:
    view = RunView()
    view.add(event("reward-a"))
    view.add(event("reward-a", kind="notice", name="stopped"))
    view.add(event("reward-a", kind="phase_ended", name="scoring"))
    assert view.processes == {}


def test_ranks_of_a_learner_do_not_succeed_each_other() -> None:
    view = RunView()
    for instance, groups in (("learner.0-a", 60.0), ("learner.1-b", 0.0)):
        view.add(event(instance, gauges={"open_groups": groups}))
    assert set(view.processes) == {"learner.0-a", "learner.1-b"}
    view.add(event("learner.0-c", gauges={"open_groups": 7.0}))
    assert set(view.processes) == {"learner.0-c", "learner.1-b"}
    assert view.gauge("learner", "open_groups") == 7.0


def test_a_quiet_process_is_marked_and_goes_when_its_slot_has_a_new_one() -> None:
    view = RunView(quiet_s=5.0)
    zero, one = {"slot": "0", "phase": "generating"}, {"slot": "1", "phase": "generating"}
    view.add(event("rollout-vm-10-aaaaaa", details=zero), heard_s=0.0)
    for heard_s in (0.0, 9.0):
        view.add(event("rollout-vm-11-bbbbbb", details=one), heard_s=heard_s)
    quiet, heard = view.shown(10.0)
    assert (quiet.instance, view.silent_s(quiet, 10.0)) == ("rollout-vm-10-aaaaaa", 10.0)
    assert view.silent_s(heard, 10.0) is None
    view.add(event("rollout-vm-12-cccccc", details=zero), heard_s=9.5)
    assert [each.instance for each in view.shown(10.0)] == ["rollout-vm-11-bbbbbb", "rollout-vm-12-cccccc"]


def test_two_processes_of_one_slot_that_are_both_heard_are_both_shown() -> None:
    view = RunView(quiet_s=5.0)
    for instance in ("reward-vm-10-aaaaaa", "reward-vm-11-bbbbbb"):
        view.add(event(instance, details={"slot": "0", "reward": "sum"}), heard_s=1.0)
    assert len(view.shown(2.0)) == 2


def test_what_a_supervisor_saw_end_is_shown_no_more() -> None:
    view = RunView()
    for instance in ("rollout-vm-10-aaaaaa", "rollout-far-10-bbbbbb", "learner.1-vm-10-cccccc", "rollout-vm-1-dddddd"):
        view.add(event(instance))
    view.ended("rollout", host="vm", pid=10)
    view.add(event("rollout-vm-10-aaaaaa"))
    assert set(view.processes) == {"rollout-far-10-bbbbbb", "learner.1-vm-10-cccccc", "rollout-vm-1-dddddd"}
    view.ended("learner", host="vm", pid=10)
    view.add(event("learner.1-vm-10-cccccc", kind="notice", name="step", gauges={"step": 9.0}))
    assert set(view.processes) == {"rollout-far-10-bbbbbb", "rollout-vm-1-dddddd"}
    assert view.last_step == {"step": 9.0}, "a step that is read late was made all the same"


def outcomes() -> list[Record]:
    """Of the little run: its step 1.2 is void."""
    return [record for topic, _, _, record in little_run() if topic.name == "ledger"]


@pytest.fixture
def shown(log: MemoryLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Progress, StringIO]]:
    """A panel on a terminal that is a text."""
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("ops.progress.Console", lambda: console)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with Progress(log, run_file=settings(log.run, folder=tmp_path), quiet=False) as progress:
        yield progress, text


def write(log: MemoryLog, *records: Record) -> None:
    writer = log.writer(WriterSettings())
    for record in records:
        if isinstance(record, StageEvent):
            writer.write(EVENTS, record)
        elif isinstance(record, LineageStarted | LedgerSealed):
            writer.write(LEDGER, record, partition=0)
        else:
            writer.write(LEDGER, record)
    writer.flush(deadline=Deadline.after(5))
    writer.close(deadline=Deadline.after(5))


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(run=RUN, data_partitions=PARTITIONS)


def test_the_count_of_drops_stays_when_the_learner_has_ended(log: MemoryLog, shown: tuple[Progress, StringIO]) -> None:
    progress, text = shown
    write(log, event("learner-vm-1-aaaaaa"), event("learner-vm-1-aaaaaa", kind="notice", name="stopped"))
    write(log, *outcomes())
    progress.__exit__(None, None, None)
    assert "dropped      3 ids, 1 failed" in text.getvalue().rpartition("run little")[2]


def test_the_terminal_shows_brackets_names_of_rewards_and_no_controls(
    log: MemoryLog, shown: tuple[Progress, StringIO]
) -> None:
    progress, text = shown
    progress.say("hint: install rlweave[vllm] :smile: [/] \x1b[2J")
    for name, pid in (("sum", 1), ("brevity", 2)):
        details = {"reward": name, "slot": "0", "phase": "[scoring]"}
        write(log, event(f"reward-vm-{pid}-aaaaaa", details=details))
    why = {"reward": "boom", "text": "reward boom is paused: most often: KeyError: x[/y]"}
    for _ in range(2):
        write(log, event("reward-vm-3-aaaaaa", kind="notice", name="breaker_opened", details=why))
    progress.turn(force=True)
    progress.__exit__(None, None, None)
    out = text.getvalue()
    assert "hint: install rlweave[vllm] :smile: [/] ?[2J" in out
    assert out.count("reward boom is paused: most often: KeyError: x[/y]") == 1
    panel = out.rpartition("run little")[2]
    assert "reward brevity  [scoring]  reward-vm-2-aaaaaa" in panel
    assert "reward sum      [scoring]  reward-vm-1-aaaaaa" in panel
