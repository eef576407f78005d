"""Checkpoints that outlive the learner's disk: uploaded beside a run, and gone on from when the folder is lost."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.uploads.layout import MARKER
from tests.e2e.processes import children_of, signal_pid, wait_gone
from tests.e2e.support import Value, check_books, small_run
from topics.catalog import EVENTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_run_whose_checkpoint_folder_is_lost_goes_on_from_an_upload(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    target = tmp_path / "elsewhere"
    changes: dict[str, Value] = {
        "run.max_steps": 8,
        "learner.checkpoint.every_steps": 3,
        "learner.checkpoint.upload": f"file://{target}",
        "learner.checkpoint.upload_keep": 2,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS)
        watch.until(
            lambda: any(each.details["version"] != "1.0" for each in watch.events("peer", name="checkpoint_uploaded")),
            what="a checkpoint to be uploaded",
        )
        pids = list(children_of(process.pid))
        process.popen.kill()
        process.popen.wait()
        for pid in pids:
            signal_pid(pid, signal.SIGKILL)
        wait_gone(pids, limit_s=30.0)
        shutil.rmtree(run.run_folder / "checkpoints")
        assert run.up().wait(120) == 0, run.outputs()
        watch.until(lambda: bool(watch.events("learner", name="finished")), what="the end")
        (back,) = watch.events("learner", name="checkpoint_brought_back")
        assert back.details["url"] == f"file://{target}"
        watch.close()
        seen = check_books(run)
        assert seen.ledger.lineages.current == 2
        assert (target / run.name / "2.8" / MARKER).exists(), f"the last one is uploaded too\n{run.outputs()}"
        assert len(list((target / run.name).iterdir())) == 2
