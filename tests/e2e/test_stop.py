"""Orderly stops: each stage in each phase, the whole run, and a supervisor that is killed.

A stop is SIGTERM. It must end with code 0 within the grace, leave nothing behind, and lose nothing.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from tests.e2e.processes import LIMIT_S, Process, child_with, children_of, command_of, signal_pid, wait_gone
from tests.e2e.support import Run, Watch, check_books, read_all, small_run
from topics.catalog import EVENTS, LEDGER, WEIGHTS
from topics.clock import Deadline

pytestmark = [pytest.mark.integration, pytest.mark.slow]
GRACE_S = 60.0  # far above run.stop_grace_s: a busy machine is no failure, a hang is


def stop_child(run: Run, supervisor: Process, watch: Watch, *parts: str) -> None:
    """SIGTERM one stage under a supervisor and wait until it is gone."""
    pid = child_with(supervisor, *parts)
    signal_pid(pid, signal.SIGTERM)
    wait_gone([pid], limit_s=GRACE_S)
    stage = parts[0].split()[1]
    watch.until(
        lambda: any(f"-{pid}-" in each.instance for each in watch.events(stage, name="stopped")),
        what=f"{stage} {pid} to say that it stopped",
    )
    (said,) = [each for each in watch.events(stage, name="stopped") if f"-{pid}-" in each.instance]
    assert (said.details["reason"], said.details["code"]) == ("SIGTERM", "0"), run.outputs()


def test_every_stage_stops_in_order_in_the_middle_of_a_run_and_nothing_is_lost(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 45."""
    changes = {"run.max_steps": 24, "learner.checkpoint.every_steps": 100}  # it must not end before the stops
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS)
        watch.until_step(1)
        stop_child(run, process, watch, " run prompts ")
        stop_child(run, process, watch, " run reward ")
        watch.until_step(3)
        stop_child(run, process, watch, " run rollout ")
        stop_child(run, process, watch, " run scheduler ")
        stop_child(run, process, watch, " run peer ")
        watch.until_step(5)
        stop_child(run, process, watch, " run learner ")
        assert process.wait(120) == 0, run.outputs()
        watch.close()
        seen = check_books(run)
        assert seen.ledger.lineages.current == 2
        void = [each for each in seen.outcomes if not seen.ledger.lineages.survives(each.lineage, each.step)]
        assert not [each for each in void if each.result == "trained"], "a stop repeats no step: it leaves a checkpoint"


def test_the_learner_stops_while_it_starts_clones_waits_for_a_peer_and_for_data(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 45."""
    with small_run(tmp_path, run_name, services=services, model=model) as run:
        for library in ("_pydantic_core", "confluent_kafka", "libtorch"):  # while it imports them
            learner = run.stage("learner")
            _until_mapped(learner, library)
            check_stops(learner)
        run.settings["learner.cloning.num_steps"] = 100_000
        _stop_in_phase(run, "cloning")
        run.settings["learner.cloning.num_steps"] = 1
        _stop_in_phase(run, "waiting_for_peer")
        assert not read_all(run, WEIGHTS).manifests
        peer = run.stage("peer")
        _stop_in_phase(run, "waiting_for_data")
        check_stops(peer)
        seen = read_all(run, LEDGER, WEIGHTS)
        assert not seen.outcomes
        assert len(seen.manifests) == 1, "published whole by the last one, not at all by those before"


def test_stages_stop_while_they_wait_for_a_learner(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 45."""
    phases = {"prompts": "waiting_for_weights", "rollout": "waiting_for_weights", "reward": "waiting_for_samples"}
    with small_run(tmp_path, run_name, services=services, model=model) as run:
        watch = run.watch(EVENTS)
        for stage, phase in {**phases, "scheduler": "watching", "peer": "serving"}.items():
            process = run.stage(stage)
            watch.until_phase(stage, phase)
            check_stops(process)
        watch.close()


def test_a_run_stopped_or_orphaned_leaves_no_process_and_goes_on_when_started_again(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Ctrl-C ends it as SIGTERM does (test_two_learners)."""
    changes = {"run.max_steps": 18}
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        watch = run.watch(EVENTS, LEDGER)
        for number in (signal.SIGTERM, signal.SIGKILL):
            process = run.up()
            watch.until_step(int(watch.step_of()) + 2)
            stages = _tree(process.pid)
            assert len(stages) >= 6
            process.send(number)
            assert process.wait(GRACE_S + 5) == (-signal.SIGKILL if number == signal.SIGKILL else 0), run.outputs()
            wait_gone(stages, limit_s=GRACE_S + 5)
            watch.to_end()
        assert run.up().wait(120) == 0, run.outputs()
        watch.close()
        assert check_books(run).ledger.lineages.current == 3


def _tree(pid: int) -> list[int]:
    """A process's children, and theirs."""
    children = list(children_of(pid))
    return children + [each for child in children for each in children_of(child) if command_of(each)]


def _until_mapped(process: Process, library: str) -> None:
    """Until a process has begun to load a library."""
    deadline = Deadline.after(LIMIT_S)
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        deadline.check(f"{process.arguments} to load {library}")
        time.sleep(0.01)


def check_stops(process: Process) -> None:
    process.send(signal.SIGTERM)
    assert process.wait(GRACE_S) == 0, process.output()


def _stop_in_phase(run: Run, phase: str) -> None:
    learner = run.stage("learner")
    watch = run.watch(EVENTS)
    watch.until(
        lambda: any(
            f"-{learner.pid}-" in each.instance for each in watch.events("learner", kind="phase_began", name=phase)
        ),
        what=f"the learner in {phase}",
    )
    watch.close()
    check_stops(learner)
