"""A whole run through real processes: undisturbed, and with a kill of each kind in the middle."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from pipeline.uploads.layout import MARKER
from schemas.reasons import Result
from tests.e2e.processes import child_with, signal_pid
from tests.e2e.support import STEPS, Run, Value, Watch, check_books, small_run
from topics.catalog import EVENTS, LEDGER, WEIGHTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]
KILL_STEPS, EVERY = 20, 4  # steps of the run that is killed, and between its checkpoints


def test_an_undisturbed_run_trains_every_id_once_refuses_a_second_and_ends_with_0(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    copies = tmp_path / "copies"
    changes: dict[str, Value] = {"rollout.replicas": 2, "learner.checkpoint.upload": f"file://{copies}"}
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS)
        watch.until_phase("prompts", "waiting_for_weights")
        second = run.up()
        assert second.wait() == ExitCode.REFUSED, second.output()
        assert "nothing was started" in second.output()
        watch.close()
        assert process.wait(120) == 0, run.outputs()
        seen = check_books(run)
        trained = [each for each in seen.outcomes if each.result == Result.TRAINED]
        assert len(trained) == STEPS * 4
        ages = [member.age for each in trained for member in each.members]
        assert max(age for age in ages if age is not None) <= 2
        assert [(each.version.lineage, each.version.step) for each in seen.manifests] == [
            (1, step) for step in range(STEPS + 1)
        ]
        assert (copies / run.name / f"1.{STEPS}" / MARKER).exists(), "the last checkpoint is uploaded before the end"
        pids = json.loads((run.run_folder / "processes.json").read_text())
        assert len({pid for started in pids.values() for pid in started}) >= 6
        assert all(len(started) == 1 for started in pids.values()), f"restarts in a quiet run: {pids}"


def test_kill_9_of_learner_rollout_and_reward_loses_nothing_and_trains_nothing_twice(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 30."""
    changes: dict[str, Value] = {
        "run.max_steps": KILL_STEPS,
        "learner.checkpoint.every_steps": EVERY,
        "rollout.replicas": 2,
        "weights.keep_versions": 100,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, LEDGER, WEIGHTS)
        watch.until_step(2)
        signal_pid(child_with(process, " run rollout ", "--slot 0"), signal.SIGKILL)
        watch.until_step(4)
        signal_pid(child_with(process, " run reward "), signal.SIGKILL)
        signal_pid(child_with(process, " run peer "), signal.SIGKILL)
        watch.until_step(6)
        signal_pid(child_with(process, " run learner "), signal.SIGKILL)
        watch.until(lambda: any(each.version.lineage == 2 for each in watch.manifests), what="the second lineage")
        signal_pid(child_with(process, " run prompts "), signal.SIGKILL)
        signal_pid(child_with(process, " run scheduler "), signal.SIGKILL)
        assert process.wait(150) == 0, run.outputs()
        watch.close()
        pids = json.loads((run.run_folder / "processes.json").read_text())
        assert {name: len(started) for name, started in pids.items()} == {
            "learner": 2,
            "peer": 2,
            "prompts": 2,
            "reward-sum-0": 2,
            "rollout-0": 2,
            "rollout-1": 1,
            "scheduler": 2,
        }
        _check_lineages(run, check_books(run))


def _check_lineages(run: Run, seen: Watch) -> None:
    lineages = seen.ledger.lineages
    assert lineages.current == 2
    branch = lineages.limits[1]
    last = max(each.step for each in seen.outcomes if each.lineage == 1 and each.result == Result.TRAINED)
    assert last >= 6  # more where the kill came late
    saved = {step - step % EVERY for step in (last, last - 1, last - 2)}  # the newest one may have been under way
    assert branch in saved, f"the newest checkpoint before the kill after step {last} is one of {saved}"
    versions = [(each.version.lineage, each.version.step) for each in seen.manifests]
    assert versions == sorted(set(versions)), "each version once, in order"
    assert [step for lineage, step in versions if lineage == 2] == list(range(branch, KILL_STEPS + 1))
    void = [each for each in seen.outcomes if not lineages.survives(each.lineage, each.step)]
    assert {each.lineage for each in void} <= {1}
    assert len({seed for each in seen.manifests for seed in each.seeds}) == 1, "the peer came back on its port"
    served: dict[str, str] = {}
    for event in seen.events("rollout", name="swapped"):
        served[event.instance] = event.details["version"]
    assert served
    assert [version for version in served.values() if version.startswith("2.")], f"an engine followed: {served}"
