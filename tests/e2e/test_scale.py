"""A run whose rollouts become more and then fewer while it goes on: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from schemas.reasons import Result
from schemas.records import Command
from tests.e2e.support import Run, Value, Watch, check_books, small_run
from topics.catalog import COMMANDS, EVENTS
from topics.clock import Deadline
from topics.log import Writer, WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STEPS = 24
GROUPS_PER_S = 4.0  # one step per second
SEQ = 1_000_000  # above those of the run's own scheduler
WHY = {"why": "the settings allow 1 to 3"}


@dataclass
class Commander:
    """Commands beside those of the run's scheduler, in its epoch."""

    run: Run
    writer: Writer
    epoch: int
    seq: int = SEQ

    def command(self, kind: str, target: str, *, replicas: int | None = None, rate: float | None = None) -> None:
        self.seq += 1
        record = Command(
            run=self.run.name,
            target=target,
            kind=kind,
            epoch=self.epoch,
            seq=self.seq,
            reason="test",
            replicas=replicas,
            rate=rate,
            issued_unix_ms=time.time_ns() // 1_000_000,
        )
        self.writer.write(COMMANDS, record)
        self.writer.flush(deadline=Deadline.after(10))


@contextmanager
def commander_of(run: Run, watch: Watch) -> Iterator[Commander]:
    """In the epoch of the scheduler that is at work."""
    watch.until(lambda: _epoch(watch), what="a command of the scheduler")
    writer = run.log.writer(WriterSettings())
    try:
        yield Commander(run, writer, _epoch(watch))
    finally:
        writer.close(deadline=Deadline.after(10))


def test_rollouts_become_three_and_then_one_and_every_id_is_trained_once(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    changes: dict[str, Value] = {
        "run.max_steps": STEPS,
        "rollout.max_replicas": 3,
        "learner.silent_end_s": 300.0,
        "learner.checkpoint.every_steps": STEPS,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, COMMANDS)
        with commander_of(run, watch) as scheduler:
            scheduler.command("rate", "prompts", rate=0.0)  # so that the run does not end before they are there
            scheduler.command("scale", "rollout", replicas=5)
            watch.until(lambda: _replicas(watch) == (3, 0), what="3 rollouts")
            watch.until(lambda: len(_swapped(watch)) == 3, what="3 rollouts with weights")
            assert _acknowledged(watch) == [{"target": "rollout", "asked": "5", "replicas": "3"} | WHY]
            scheduler.command("rate", "prompts", rate=GROUPS_PER_S)
            watch.until_step(int(watch.step_of()) + 2)
            scheduler.command("scale", "rollout", replicas=1)
            watch.until(lambda: len(_acknowledged(watch)) == 2, what="the answer to that")
            scheduler.command("rate", "prompts", rate=0.0)  # they retire at work, and the run waits for them
            watch.until(lambda: _replicas(watch) == (1, 0), what="1 rollout")
            assert _acknowledged(watch)[1:] == [{"target": "rollout", "asked": "1", "replicas": "1"}]
            assert watch.step_of() < STEPS, "the run ended before its rollouts were fewer"
            scheduler.command("rate", "prompts")
        assert process.wait(120) == 0, run.outputs()
        watch.close()
        seen = check_books(run)
        trained = [each for each in seen.outcomes if each.result == Result.TRAINED]
        assert len(trained) == STEPS * 4
        _check_processes(run, seen, said=process.output())


def _epoch(watch: Watch) -> int:
    return max((each.record.epoch for each in watch.envelopes if isinstance(each.record, Command)), default=0)


def _acknowledged(watch: Watch) -> list[dict[str, str]]:
    return [dict(each.details) for each in watch.events("supervisor", name="scaled")]


def _replicas(watch: Watch) -> tuple[float, float]:
    """Rollouts that run and that retire, by the supervisor's last heartbeat."""
    beats = watch.events("supervisor", kind="heartbeat")
    if not beats:
        return (0, 0)
    gauges = beats[-1].gauges
    return gauges["replicas{target=rollout}"], gauges["replicas_retiring{target=rollout}"]


def _swapped(watch: Watch) -> set[str]:
    return {each.instance for each in watch.events("rollout", name="swapped")}


def _check_processes(run: Run, seen: Watch, *, said: str) -> None:
    pids = json.loads((run.run_folder / "processes.json").read_text())
    assert [len(pids[f"rollout-{slot}"]) for slot in range(3)] == [1, 1, 1], "one life each: none was started again"
    stops = [dict(each.details) for each in seen.events("rollout", name="stopped")]
    retired = [details for details in stops if details["reason"] == "retired"]
    assert retired == [{"reason": "retired", "code": "0"}] * 2, run.outputs()
    assert all(f"rollout-{slot} has retired" in said for slot in (1, 2)), said
    assert "killing it" not in said
