"""A whole run through real processes: undisturbed, and with a kill of each kind in the middle."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from schemas.reasons import Result
from tests.e2e.support import STEPS, Run, Watch, check_books, child_with, signal_pid, small_run
from topics.catalog import EVENTS, LEDGER, WEIGHTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_an_undisturbed_run_trains_every_id_once_and_ends_with_0(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    with small_run(tmp_path, run_name, services=services, model=model) as run:
        process = run.up()
        assert process.wait(120) == 0, run.outputs()
        seen = check_books(run)
        trained = [each for each in seen.outcomes if each.result == Result.TRAINED]
        assert len(trained) == STEPS * 4
        ages = [member.age for each in trained for member in each.members]
        assert max(age for age in ages if age is not None) <= 2
        assert [(each.version.lineage, each.version.step) for each in seen.manifests] == [
            (1, step) for step in range(STEPS + 1)
        ]
        pids = json.loads((run.run_folder / "processes.json").read_text())
        assert len({pid for started in pids.values() for pid in started}) >= 6
        assert all(len(started) == 1 for started in pids.values()), f"restarts in a quiet run: {pids}"


def test_kill_9_of_learner_rollout_and_reward_loses_nothing_and_trains_nothing_twice(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    changes = {"run.max_steps": 14, "learner.checkpoint.every_steps": 4}
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, LEDGER, WEIGHTS)
        watch.until_step(2)
        signal_pid(child_with(process, " run rollout ", "--slot 0"), signal.SIGKILL)
        watch.until_step(4)
        signal_pid(child_with(process, " run reward "), signal.SIGKILL)
        watch.until_step(6)
        signal_pid(child_with(process, " run learner "), signal.SIGKILL)
        assert process.wait(150) == 0, run.outputs()
        watch.close()
        _check_lineages(run, check_books(run))


def _check_lineages(run: Run, seen: Watch) -> None:
    lineages = seen.ledger.lineages
    assert lineages.current == 2
    branch = lineages.limits[1]
    assert branch == 4, "the newest checkpoint before step 6 is that of step 4"
    versions = [(each.version.lineage, each.version.step) for each in seen.manifests]
    assert versions == sorted(set(versions)), "each version once, in order"
    assert [step for lineage, step in versions if lineage == 2] == list(range(branch, 15))
    void = [each for each in seen.outcomes if not lineages.survives(each.lineage, each.step)]
    assert {each.lineage for each in void} <= {1}
    served = {event.version for event in seen.events("rollout", name="serving") if event.version is not None}
    assert not served or max(served).lineage == 2
