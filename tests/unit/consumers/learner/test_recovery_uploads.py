"""A learner whose checkpoint folder is gone goes on from what was uploaded, or says that there is nothing."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from consumers.learner.setup import LearnerSetup
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.traffic.permit import Permit
from pipeline.traffic.sender import HostSender
from pipeline.uploads.sending import UploadJob, send_checkpoint
from schemas.errors import CheckpointError, SettingsError
from tests.integration.learner_world import start, step_of
from tests.unit.consumers.learner.recorded_world import RecordedRun, recorded_run
from tests.unit.producers.world import events_of
from topics.memory import MemoryLog


@dataclass
class _Run:
    """A run that has come to step 3, with checkpoints of steps 0 and 2."""

    inner: RecordedRun
    folder: Path
    url: str
    checkpoints: Path = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoints = self.folder / self.inner.log.run / "checkpoints"

    def upload(self, version: str) -> None:
        send_checkpoint(
            UploadJob(
                folder=self.checkpoints / version,
                url=self.url,
                name=f"{self.inner.log.run}/{version}",
                part_bytes=65536,
                parallel=2,
            ),
            sender=HostSender(Permit()),
            stop=threading.Event(),
        )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Run:
    make_tiny_model(
        tmp_path / "model", seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1)
    )
    inner = recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, tmp_path / "model")
    url = f"file://{tmp_path}/target"
    plain = type(inner)._setup

    def with_upload(self: RecordedRun) -> LearnerSetup:
        setup = plain(self)
        checkpoint = setup.settings.checkpoint.model_copy(update={"upload": url})
        settings = setup.settings.model_copy(update={"checkpoint": checkpoint})
        return LearnerSetup(**{**vars(setup), "settings": settings})

    monkeypatch.setattr(type(inner), "_setup", with_upload)
    inner.live(until=3)
    return _Run(inner, tmp_path, url)


def test_it_goes_on_from_the_newest_upload_when_its_folder_is_gone(run: _Run) -> None:
    assert (run.checkpoints / "1.2").is_dir()
    run.upload("1.0")
    run.upload("1.2")
    shutil.rmtree(run.checkpoints)
    stage, context = run.inner.learner()
    start(stage)
    assert step_of(context) in (0, 2)
    assert events_of(run.inner.log, "restored")[-1]["path"] == str(run.checkpoints / "1.2")
    assert events_of(run.inner.log, "checkpoint_brought_back")[-1]["url"] == run.url
    assert stage._loop is not None
    assert (stage._loop._lineage, stage._loop._step) == (2, 2)
    stage._loop.close(in_order=False)


def test_what_is_on_the_disk_comes_first(run: _Run) -> None:
    run.upload("1.0")
    run.inner.die_at_once()
    assert events_of(run.inner.log, "restored")[-1]["path"] == str(run.checkpoints / "1.2")
    assert events_of(run.inner.log, "checkpoint_brought_back") == []


def test_a_damaged_folder_is_made_good_by_the_upload(run: _Run) -> None:
    run.upload("1.2")
    for version in run.checkpoints.iterdir():
        (version / "state.json").write_bytes(b"{}")
    run.inner.die_at_once()
    assert len(events_of(run.inner.log, "checkpoint_brought_back")) == 1


def test_with_none_anywhere_it_says_so_and_trains_nothing_again(run: _Run) -> None:
    shutil.rmtree(run.checkpoints)
    stage, _ = run.inner.learner()
    with pytest.raises(
        CheckpointError, match=r"no checkpoint is in .*checkpoints, and none of run r is at file://"
    ) as e:
        start(stage)
    assert "3 trained steps" in e.value.message
    assert e.value.hint is not None


def test_what_uploads_need_is_looked_at_before_anything_else(run: _Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise SettingsError("learner.checkpoint.upload is set, but fsspec is not installed")

    monkeypatch.setattr("consumers.learner.stage.check_target", missing)
    stage, _ = run.inner.learner()
    with pytest.raises(SettingsError, match="fsspec is not installed"):
        start(stage)
