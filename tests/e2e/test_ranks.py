"""Whole runs with a learner of several ranks: killed, frozen, resumed with another number of ranks."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import pytest

from ops.services.model import ServicesInfo
from schemas.reasons import Result
from tests.e2e.processes import Process, child_with, signal_pid
from tests.e2e.support import Run, Value, Watch, check_books, small_run
from topics.catalog import EVENTS, LEDGER, WEIGHTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]
Fault: TypeAlias = tuple[int, signal.Signals]  # which rank, and what is sent to it
FAULTS: tuple[Fault, ...] = ((1, signal.SIGKILL), (0, signal.SIGSTOP), (1, signal.SIGSTOP), (0, signal.SIGKILL))
TWO: dict[str, Value] = {"learner.ranks": 2, "learner.compare_every_steps": 2, "weights.keep_versions": 100}


def rank_pid(supervisor: Process, rank: int) -> int:
    return child_with(supervisor, " run learner ", f"--slot {rank}")


def starts(run: Run) -> dict[str, int]:
    pids = json.loads((run.run_folder / "processes.json").read_text())
    return {name: len(started) for name, started in pids.items() if name.startswith("learner")}


def until_lineage(watch: Watch, lineage: int) -> None:
    watch.until(
        lambda: any(each.version.lineage == lineage for each in watch.manifests), what=f"lineage {lineage}", limit_s=150
    )


def until_step_or_end(watch: Watch, step: int, *, process: Process) -> None:
    """Until a step is done; fails with its output when the run ended before."""
    watch.until(lambda: watch.step_of() >= step or process.popen.poll() is not None, what=f"step {step}", limit_s=150)
    assert process.popen.poll() is None, process.output()


@pytest.mark.timeout(900)
def test_a_rank_that_dies_or_stands_still_is_named_and_all_begin_a_new_lineage(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    changes: dict[str, Value] = {
        **TWO,
        "run.max_steps": 40,
        "learner.collective_limit_s": 10.0,
        "supervisor.unit_grace_s": 5.0,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, LEDGER, WEIGHTS)
        for number, (rank, what) in enumerate(FAULTS):
            until_step_or_end(watch, 3 + 8 * number, process=process)
            signal_pid(rank_pid(process, rank), what)
            until_lineage(watch, number + 2)
        assert process.wait(240) == 0, run.outputs()
        watch.close()
        check_books(run)
        both = starts(run)
        assert both["learner-0"] == both["learner-1"] >= 1 + len(FAULTS), both
        for rank in (0, 1):
            said = (run.run_folder / "logs" / f"learner-{1 - rank}.log").read_text()
            assert f"learner rank {rank} is missing: learner.{rank}-" in said


@pytest.mark.timeout(600)
def test_two_ranks_then_one_then_four(services: ServicesInfo, run_name: str, tmp_path: Path, model: Path) -> None:
    changes: dict[str, Value] = {**TWO, "run.max_steps": 10_000}  # the test ends the first two, however late it looks
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        done = 0
        for number in (2, 1):
            run.settings["learner.ranks"] = number
            process = run.up()
            watch = run.watch(EVENTS)
            until_step_or_end(watch, done + 5, process=process)
            watch.close()
            process.send(signal.SIGTERM)
            assert process.wait(60) == 0, run.outputs()
            done = check_books(run, sealed=False).ledger.step
        run.settings |= {"learner.ranks": 4, "run.max_steps": done + 6}
        assert run.up().wait(240) == 0, run.outputs()
        seen = check_books(run)
        alive = [each for each in seen.outcomes if seen.ledger.lineages.survives(each.lineage, each.step)]
        steps = Counter(each.step for each in alive if each.result == Result.TRAINED)
        assert steps == dict.fromkeys(range(1, done + 7), 4)
        assert {each.lineage for each in alive} == {1, 2, 3}
        assert starts(run) == {f"learner-{rank}": 1 for rank in range(4)}
        heard = {event.instance.partition("-")[0] for event in seen.events("learner", kind="heartbeat")}
        assert heard >= {f"learner.{rank}" for rank in range(4)}
        told = {event.instance.partition("-")[0] for event in seen.events("learner", name="step")}
        assert told == {"learner", "learner.0"}, "one rank tells of a step, and a learner without ranks of its own"
