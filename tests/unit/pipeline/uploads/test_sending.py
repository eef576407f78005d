"""An upload is whole or not there, whatever happens to it, and is gone on with."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.traffic.permit import Permit
from pipeline.traffic.sender import HostSender
from pipeline.uploads.layout import MARKER, PARTS, decode_marker
from pipeline.uploads.sending import Progress, UploadCut, send_checkpoint
from pipeline.uploads.target import Target
from schemas.errors import UploadError
from tests.unit.pipeline.uploads.material import TOTAL, free_sender, job, make_checkpoint

# Says so when four parts are there, and goes no further.
HALF = """
import sys, threading
from pathlib import Path
from pipeline.uploads.sending import send_checkpoint
from pipeline.uploads.target import Target
from tests.unit.pipeline.uploads.material import free_sender, job
write, turn, written = Target.write, threading.Lock(), []
def four_only(target, name, content):
    with turn:
        if len(written) == 4:
            print("half", flush=True)
            threading.Event().wait()
        write(target, name, content)
        written.append(name)
Target.write = four_only
send_checkpoint(job(Path(sys.argv[1]), Path(sys.argv[2])), sender=free_sender(), stop=threading.Event())
"""


def test_all_parts_are_there_and_the_marker_says_so(tmp_path: Path) -> None:
    checkpoint, progress = make_checkpoint(tmp_path, "1.10"), Progress()
    marker = send_checkpoint(
        job(checkpoint, tmp_path / "target"), sender=free_sender(), stop=threading.Event(), progress=progress
    )
    place = tmp_path / "target" / "r" / "1.10"
    assert decode_marker((place / MARKER).read_bytes()) == marker
    assert {path.name: path.stat().st_size for path in (place / PARTS).iterdir()} == marker.part_sizes
    assert (progress.sent_bytes, progress.present_bytes, progress.left_bytes) == (TOTAL, 0, 0)
    assert marker.num_bytes == TOTAL


def test_one_killed_in_the_middle_has_no_marker_and_goes_on_with_what_is_there(tmp_path: Path) -> None:
    checkpoint, parts = make_checkpoint(tmp_path, "1.10"), tmp_path / "target" / "r" / "1.10" / PARTS
    arguments = [sys.executable, "-c", HALF, str(checkpoint), str(tmp_path / "target")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.kill()
    present = sum(path.stat().st_size for path in parts.glob("[0-9a-f]*"))
    assert 0 < present < TOTAL
    assert not (parts.parent / MARKER).exists()
    progress = Progress()
    send_checkpoint(
        job(checkpoint, tmp_path / "target"), sender=free_sender(), stop=threading.Event(), progress=progress
    )
    assert (progress.present_bytes, progress.sent_bytes) == (present, TOTAL - present)
    assert (parts.parent / MARKER).exists()


def test_the_marker_is_written_after_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = Target.write

    def noted(target: Target, name: str, content: bytes) -> None:
        write(target, name, content)
        written.append(name)

    monkeypatch.setattr(Target, "write", noted)
    checkpoint = make_checkpoint(tmp_path, "1.10")
    marker = send_checkpoint(job(checkpoint, tmp_path / "target"), sender=free_sender(), stop=threading.Event())
    assert written[-1] == f"r/1.10/{MARKER}"
    assert sorted(written[:-1]) == sorted(f"r/1.10/{PARTS}/{digest}" for digest in marker.part_sizes)


def test_a_part_of_another_length_is_sent_again(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "1.10")
    target = tmp_path / "target"
    send_checkpoint(job(checkpoint, target), sender=free_sender(), stop=threading.Event())
    one = next((target / "r" / "1.10" / PARTS).iterdir())
    num_bytes = one.stat().st_size
    one.write_bytes(b"cut")
    progress = Progress()
    send_checkpoint(job(checkpoint, target), sender=free_sender(), stop=threading.Event(), progress=progress)
    assert progress.sent_bytes == num_bytes == one.stat().st_size


def test_one_that_may_not_send_is_cut_off_at_once(tmp_path: Path) -> None:
    checkpoint, stop = make_checkpoint(tmp_path, "1.10"), threading.Event()
    closed = HostSender(Permit(), phase=lambda: "gradient_sync")
    failure: list[Exception] = []

    def run() -> None:
        with pytest.raises(UploadCut) as raised:
            send_checkpoint(job(checkpoint, tmp_path / "target"), sender=closed, stop=stop)
        failure.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    stop.set()
    thread.join(10.0)
    assert len(failure) == 1
    assert not (tmp_path / "target" / "r" / "1.10" / MARKER).exists()


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "1.10")
    (tmp_path / "target").write_bytes(b"a file")
    with pytest.raises(UploadError, match=r"r/1\.10/parts"):
        send_checkpoint(job(checkpoint, tmp_path / "target"), sender=free_sender(), stop=threading.Event())


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UploadError, match=r"model\.safetensors cannot be read"):
        send_checkpoint(job(tmp_path / "1.10", tmp_path / "target"), sender=free_sender(), stop=threading.Event())
