"""When nothing comes any more, the learner names the silent stage and ends; a used-up data set is no silence."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from tests.e2e.support import Run, check_books, small_run
from topics.catalog import EVENTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]
T1_S, T2_S = 5.0, 20.0  # far apart: on a busy machine a first sample takes seconds, and so may one look


@pytest.mark.parametrize("victim", ["rollout", "reward"])
def test_a_dead_stage_is_named_by_t1_and_ends_the_learner_by_t2(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path, victim: str
) -> None:
    """Case 46."""
    changes = {"run.max_steps": 1000, "learner.silent_notice_s": T1_S, "learner.silent_end_s": T2_S}
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        stages = ["peer", "scheduler", "prompts", "rollout", "reward"]
        others = {stage: run.stage(stage) for stage in stages}
        watch = run.watch(EVENTS)
        for stage, phase in (("rollout", "waiting_for_weights"), ("reward", "waiting_for_samples")):
            watch.until_phase(stage, phase)
        learner = run.stage("learner")
        watch.until_step(1)
        others.pop(victim).popen.kill()
        assert learner.wait() == ExitCode.NO_PROGRESS, run.outputs()
        watch.to_end()
        notices = watch.events("learner", name="upstream_silent")
        assert notices, run.outputs()
        assert notices[-1].details["stage"].startswith(victim), notices[-1].details
        assert T1_S <= notices[-1].gauges["silent_s"] < T2_S
        assert victim in learner.output().split("silent:")[1]
        for process in others.values():
            process.send(signal.SIGTERM)
        assert [process.wait() for process in others.values()] == [0] * len(others), run.outputs()
        watch.close()
        check_books(run, sealed=False)


def test_prompts_that_run_out_are_a_clean_end_of_a_sealed_run(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 46."""
    with small_run(tmp_path, run_name, services=services, model=model) as run:
        _only(run, num_tasks=14)  # three whole batches of 4, and a smaller one
        run.settings |= {"run.max_steps": 1000, "prompts.source.epochs": 1, "learner.checkpoint.every_steps": 100}
        run.settings["run.on_stale"] = "train"  # so that every group is trained, however the two sides are paced
        run.settings["redis.url"] = "redis://127.0.0.1:1/0"  # nobody listens: it goes on without
        assert run.up().wait() == 0, run.outputs()
        seen = check_books(run, max_age=None)
        seal = seen.ledger.sealed
        assert seal is not None
        assert (seal.num_groups, seal.step, seal.reason) == (14, 4, "the prompts are used up")
        names = {path.name for path in (run.run_folder / "checkpoints").iterdir()}
        assert "1.4" in names, f"the last step has a checkpoint: {names}"
        assert seen.events("learner", name="lease_unknown"), "the missing Redis is told"
        second = run.up()
        assert second.wait() == 0, run.outputs()
        assert "is complete: the prompts are used up; step 4, 14 groups; nothing was started" in second.output()
        assert check_books(run, max_age=None).ledger.lineages.current == 1
        run.settings["prompts.source.epochs"] = 2  # now there is more to do
        assert run.up().wait() == 0, run.outputs()
        again = check_books(run, max_age=None)
        assert again.ledger.lineages.current == 2
        assert again.ledger.sealed is not None
        assert again.ledger.sealed.num_groups == 28


def _only(run: Run, *, num_tasks: int) -> None:
    """Keep so many tasks."""
    tasks = run.folder / "tasks.jsonl"
    tasks.write_text("".join(tasks.read_text().splitlines(keepends=True)[:num_tasks]))
