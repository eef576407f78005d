"""A scheduler that is killed and stays away: training goes on within the bound, and nothing old acts afterwards."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from schemas.records import Command, Version
from tests.e2e.support import Run, Value, Watch, check_books, small_run
from topics.catalog import COMMANDS, EVENTS
from topics.clock import Deadline
from topics.log import WriterSettings

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SILENCE_S = 0.5  # after which engines help themselves
AWAY_S = 4 * SILENCE_S
STEPS_AWAY = 4  # more than engines that stay at their version could be trained from


def test_training_goes_on_without_a_scheduler_and_nothing_old_acts_on_its_return(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    changes: dict[str, Value] = {
        "run.max_steps": 1000,
        "rollout.scheduler_silence_s": SILENCE_S,
        "rollout.stagger_s": 0.1,
        "scheduler.heartbeat_s": 0.1,
        "learner.checkpoint.every_steps": 100,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        others = [run.stage(stage) for stage in ("peer", "prompts", "rollout", "reward", "learner")]
        scheduler = run.stage("scheduler")
        watch = run.watch(EVENTS)
        watch.until_step(2)
        scheduler.popen.kill()
        at_step, killed_s = watch.step_of(), time.monotonic()
        watch.until(
            lambda: watch.step_of() >= at_step + STEPS_AWAY and time.monotonic() - killed_s >= AWAY_S,
            what=f"{STEPS_AWAY} steps without a scheduler",
        )
        served = _served(watch)
        assert served[-1].step > at_step, "engines fetch new versions by themselves"
        again = run.stage("scheduler")
        watch.until(lambda: len(watch.events("scheduler", name="epoch")) == 2, what="the next epoch")
        _say_old_things(run)
        at_step = watch.step_of()
        watch.until_step(int(at_step) + 5)  # three batches may be open, so admission goes on
        for process in (*others, again):
            process.send(signal.SIGTERM)
        assert [process.wait() for process in (*others, again)] == [0] * 6, run.outputs()
        watch.to_end()
        watch.close()
        check_books(run, sealed=False)  # nothing older than the bound among it
    served = _served(watch)
    assert served == sorted(served), "no engine goes back"
    assert [event.gauges["epoch"] for event in watch.events("scheduler", name="epoch")] == [1, 2]


def _served(watch: Watch) -> list[Version]:
    return [event.version for event in watch.events("rollout", name="swapped") if event.version is not None]


def _say_old_things(run: Run) -> None:
    """What the scheduler before said last arrives now: admit nothing, and serve the first version."""
    pause = Command(
        run=run.name, target="prompts", kind="rate", rate=0.0, epoch=1, seq=10**6, reason="", issued_unix_ms=0
    )
    first = Version(lineage=1, step=0)
    back = Command(
        run=run.name, target="rollout", kind="publish", version=first, epoch=1, seq=10**6, reason="", issued_unix_ms=0
    )
    writer = run.log.writer(WriterSettings())
    for command in (pause, back):
        writer.write(COMMANDS, command)
    writer.close(deadline=Deadline.after(10))
