"""The uploader beside a learner that goes on: holds, uploads, retries, supersedes, prunes, and leaves in time."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.metrics import Metrics
from pipeline.traffic.permit import Permit, permit_of
from pipeline.traffic.sender import HostSender
from pipeline.uploads import uploader as uploader_module
from pipeline.uploads.layout import MARKER
from pipeline.uploads.settings import UploadSettings
from pipeline.uploads.target import Target
from pipeline.uploads.uploader import Uploader
from tests.unit.pipeline.uploads.material import PART_BYTES, make_checkpoint
from topics.clock import Deadline, SystemClock

CLOSED = permit_of({"checkpoints": 0.0})


@dataclass
class Told:
    """Notices."""

    notices: list[tuple[str, dict[str, str], dict[str, float]]] = field(default_factory=list)

    def notice(self, name: str, *, details: Mapping[str, str] | None = None, **gauges: float) -> None:
        self.notices.append((name, dict(details or {}), gauges))

    def named(self, name: str) -> list[dict[str, str]]:
        return [details for told, details, _ in self.notices if told == name]


class Run:
    """A run's folder, a target, and an uploader that a test turns."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder = folder / "run"
        self.checkpoints = self.folder / "checkpoints"
        self.target = folder / "target"
        self.sender = HostSender(Permit())
        self.told = Told()
        self.metrics = Metrics(run="r", stage="peer", instance="peer-1")
        self.keep = keep
        self.uploader = self.new_uploader()

    def new_uploader(self) -> Uploader:
        return Uploader(
            UploadSettings(
                upload=f"file://{self.target}",
                upload_keep=self.keep,
                upload_part_bytes=PART_BYTES,
                upload_parallel=2,
            ),
            run="r",
            folder=self.folder,
            sender=self.sender,
            clock=SystemClock(),
            events=self.told,
            metrics=self.metrics,
        )

    def turn_until(self, reached: Callable[[], bool]) -> None:
        deadline = Deadline.after(20.0)
        while not reached():
            deadline.check("what the test waits for")
            self.uploader.turn()
            time.sleep(0.002)

    def is_whole(self, version: str) -> bool:
        return (self.target / "r" / version / MARKER).exists()

    def held(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "uploads").iterdir() if path.is_dir())

    def count(self, name: str) -> float:
        return self.metrics.snapshot().get(name, 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_nothing_is_asked_of_the_target_while_there_is_no_checkpoint(run: Run) -> None:
    """The peers of other hosts have the same settings."""
    run.uploader.turn()
    assert not run.target.exists()
    assert run.told.notices == []


def test_a_checkpoint_is_uploaded_and_nothing_of_it_stays_behind(run: Run) -> None:
    make_checkpoint(run.checkpoints, "1.10")
    run.turn_until(lambda: bool(run.told.named("checkpoint_uploaded")))
    assert run.is_whole("1.10")
    assert run.held() == []
    assert run.count("checkpoint_upload_s_sum") > 0
    for _ in range(3):
        run.uploader.turn()
    assert len(run.told.notices) == 1, "once is enough"


def test_retention_of_the_disk_does_not_take_away_what_is_being_uploaded(run: Run) -> None:
    run.sender.replace(CLOSED)
    checkpoint = make_checkpoint(run.checkpoints, "1.10")
    run.turn_until(lambda: run.held() == ["1.10"] if (run.folder / "uploads").exists() else False)
    shutil.rmtree(checkpoint)
    run.sender.replace(Permit())
    run.turn_until(lambda: run.is_whole("1.10"))
    assert not checkpoint.exists()


def test_while_one_is_under_way_newer_ones_supersede_each_other(run: Run) -> None:
    run.uploader.turn()
    run.sender.replace(CLOSED)
    make_checkpoint(run.checkpoints, "1.10")
    run.turn_until((run.folder / "uploads" / "1.10").exists)
    for version in ("1.20", "1.30", "1.40"):
        make_checkpoint(run.checkpoints, version)
        run.uploader.turn()
    assert run.count("checkpoint_uploads_waiting") == 1
    run.sender.replace(Permit())
    run.turn_until(lambda: run.is_whole("1.40"))
    assert run.count("checkpoint_uploads_superseded") == 2
    assert run.is_whole("1.10")
    assert not run.is_whole("1.20")
    assert not run.is_whole("1.30")


def test_a_target_that_fails_is_told_and_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_module, "_BACKOFF_S", 0.01)
    run.target.write_bytes(b"in the way")
    make_checkpoint(run.checkpoints, "1.10")
    run.turn_until(lambda: len(run.told.named("checkpoint_upload_failed")) >= 2)
    told = run.told.named("checkpoint_upload_failed")
    assert "tried again in 0.01 s" in told[0]["why"]
    assert "tried again in 0.02 s" in told[1]["why"]
    run.target.unlink()
    run.turn_until(lambda: run.is_whole("1.10"))
    assert run.count("checkpoint_uploads_failed") == len(run.told.named("checkpoint_upload_failed"))


def test_old_ones_go(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=2)
    for step in (10, 20, 30):
        make_checkpoint(run.checkpoints, f"1.{step}")
        run.turn_until(lambda step=step: len(run.told.named("checkpoint_uploaded")) == step // 10)  # type: ignore[misc]
    assert sorted(path.name for path in (run.target / "r").iterdir()) == ["1.20", "1.30"]


def test_of_a_branch_that_was_given_up_none_takes_the_place_of_one_that_survives(tmp_path: Path) -> None:
    """Lineage 2 begins at step 10; its first checkpoint is passed by, as a newer one is there."""
    run = Run(tmp_path, keep=2)
    for version in ("1.10", "1.20"):
        make_checkpoint(run.checkpoints, version)
        run.turn_until(lambda version=version: run.is_whole(version))  # type: ignore[misc]
    run.turn_until(lambda: len(run.told.named("checkpoint_uploaded")) == 2)
    for version in ("2.10", "2.30"):
        make_checkpoint(run.checkpoints, version)
    run.turn_until(lambda: len(run.told.named("checkpoint_uploaded")) == 3)
    assert sorted(path.name for path in (run.target / "r").iterdir()) == ["1.10", "2.30"]


def test_a_successor_goes_on_with_what_was_begun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = Target.write, list[str]()
    lock, is_half = threading.Lock(), threading.Event()

    def write_some(target: Target, name: str, content: bytes) -> None:
        with lock:
            write(target, name, content)
            written.append(name)
            if len(written) == 2:
                run.sender.replace(CLOSED)
                is_half.set()

    monkeypatch.setattr(Target, "write", write_some)
    make_checkpoint(run.checkpoints, "1.10")
    run.turn_until(is_half.is_set)
    run.uploader._cut.set()  # as at a death: nothing is let go of, nothing is told, but the system's lock
    run.uploader._turn.give_back()
    assert run.held() == ["1.10"]
    shutil.rmtree(run.checkpoints / "1.10")
    make_checkpoint(run.checkpoints, "1.20")
    run.sender.replace(Permit())
    run.uploader = run.new_uploader()
    run.turn_until(lambda: run.is_whole("1.20"))
    assert run.is_whole("1.10"), "it had been begun"
    first = next(gauges for name, details, gauges in run.told.notices if details.get("version") == "1.10")
    assert first["present_bytes"] >= 2 * PART_BYTES


def test_what_is_at_the_target_already_is_not_uploaded_by_a_successor(run: Run) -> None:
    make_checkpoint(run.checkpoints, "1.10")
    run.turn_until(lambda: bool(run.told.named("checkpoint_uploaded")))
    run.uploader._turn.give_back()
    run.uploader = run.new_uploader()
    for _ in range(5):
        run.uploader.turn()
    assert len(run.told.notices) == 1


def test_a_target_with_a_newer_one_is_told_and_passed_later(run: Run) -> None:
    make_checkpoint(run.checkpoints, "2.9")
    run.turn_until(lambda: run.is_whole("2.9"))
    run.uploader._turn.give_back()
    shutil.rmtree(run.checkpoints / "2.9")
    make_checkpoint(run.checkpoints, "1.3")
    run.uploader = run.new_uploader()
    run.turn_until(lambda: bool(run.told.named("upload_target_is_ahead")))
    (told,) = run.told.named("upload_target_is_ahead")
    assert (told["version"], told["at_target"]) == ("1.3", "2.9")
    make_checkpoint(run.checkpoints, "3.1")
    run.turn_until(lambda: run.is_whole("3.1"))
    assert not run.is_whole("1.3")


def test_two_processes_do_not_upload_the_same_checkpoint(run: Run) -> None:
    run.sender.replace(CLOSED)
    make_checkpoint(run.checkpoints, "1.10")
    run.turn_until((run.folder / "uploads" / "1.10").exists)
    first, run.uploader = run.uploader, run.new_uploader()
    for _ in range(5):
        run.uploader.turn()
    assert run.uploader._upload is None
    first._cut.set()
    first._turn.give_back()
    run.sender.replace(Permit())
    run.turn_until(lambda: run.is_whole("1.10"))


def test_the_last_checkpoint_of_a_run_is_uploaded_before_the_process_ends(run: Run) -> None:
    run.uploader.start()
    make_checkpoint(run.checkpoints, "1.10")
    run.uploader.stop(deadline=Deadline.after(20.0))
    assert run.is_whole("1.10")
    assert not run.uploader.alive
    assert run.told.named("checkpoint_not_uploaded") == []


def test_an_upload_that_takes_too_long_is_cut_off_and_told(run: Run) -> None:
    run.sender.replace(CLOSED)
    make_checkpoint(run.checkpoints, "1.10")
    run.uploader.start()
    deadline = Deadline.after(10.0)
    while not (run.folder / "uploads" / "1.10").exists():
        deadline.check("the upload to begin")
        time.sleep(0.005)
    run.uploader.stop(deadline=Deadline.after(4.5))
    assert [each["version"] for each in run.told.named("checkpoint_not_uploaded")] == ["1.10"]
    assert run.held() == ["1.10"], "the next process goes on with it"


def test_uploads_that_cannot_keep_up_are_told_with_figures(run: Run) -> None:
    run.uploader.turn()
    for version in ("1.10", "1.20"):
        make_checkpoint(run.checkpoints, version)
        run.uploader.turn()
    run.sender.replace(CLOSED)
    make_checkpoint(run.checkpoints, "1.30")
    run.turn_until(lambda: bool(run.told.named("checkpoint_upload_behind")))
    told = next(each for each in run.told.notices if each[0] == "checkpoint_upload_behind")
    assert told[2]["upload_s"] > told[2]["allowed_s"]
    assert told[2]["every_steps"] == 10
    assert told[2]["enough_steps"] > 10
    assert "learner.checkpoint.every_steps" in told[1]["why"]
    run.sender.replace(Permit())
    run.turn_until(lambda: run.is_whole("1.20") or run.is_whole("1.30"))
