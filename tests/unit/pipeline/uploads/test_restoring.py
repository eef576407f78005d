"""What comes back is what was uploaded, of the present history, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from pipeline.uploads.layout import MARKER, PARTS, decode_marker
from pipeline.uploads.pruning import prune_uploads, uploaded_versions
from pipeline.uploads.restoring import UploadDamaged, bring_newest_back
from pipeline.uploads.sending import send_checkpoint
from pipeline.uploads.target import Target, open_target
from schemas.errors import CheckpointError, UploadError
from schemas.records import Version
from tests.unit.pipeline.uploads.material import free_sender, job, make_checkpoint, same_files

ALL = ("1.10", "1.20", "2.15")


@pytest.fixture
def target(tmp_path: Path) -> Target:
    for version in ALL:
        checkpoint = make_checkpoint(tmp_path / "made", version)
        send_checkpoint(job(checkpoint, tmp_path / "target"), sender=free_sender(), stop=threading.Event())
    return open_target(f"file://{tmp_path}/target")


def as_it_is(place: Path) -> Path:
    return place


def restored(
    target: Target, tmp_path: Path, *, void: tuple[str, ...] = (), read: Callable[[Path], Path] = as_it_is
) -> tuple[Path | None, list[str]]:
    told: list[str] = []
    place = bring_newest_back(
        target,
        run="r",
        folder=tmp_path / "checkpoints",
        survives=lambda version: str(version) not in void,
        tell=told.append,
        read=read,
    )
    return place, told


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_comes_back_as_it_was(target: Target, tmp_path: Path) -> None:
    place, told = restored(target, tmp_path)
    assert place == tmp_path / "checkpoints" / "2.15"
    assert same_files(place, tmp_path / "made" / "2.15")
    assert told == []
    assert names(tmp_path / "checkpoints") == ["2.15"]


def test_a_branch_that_was_left_is_passed_over_and_named(target: Target, tmp_path: Path) -> None:
    place, told = restored(target, tmp_path, void=("2.15",))
    assert place == tmp_path / "checkpoints" / "1.20"
    assert told == ["uploaded checkpoint 2.15 is of a branch that the ledger says was left"]


def test_one_without_its_marker_does_not_count(target: Target, tmp_path: Path) -> None:
    (tmp_path / "target" / "r" / "2.15" / MARKER).unlink()
    assert uploaded_versions(target, run="r") == [Version(lineage=1, step=20), Version(lineage=1, step=10)]
    place, _ = restored(target, tmp_path)
    assert place == tmp_path / "checkpoints" / "1.20"


def test_a_damaged_one_is_passed_over_and_leaves_nothing(target: Target, tmp_path: Path) -> None:
    part = next((tmp_path / "target" / "r" / "2.15" / PARTS).iterdir())
    part.write_bytes(bytes(part.stat().st_size))
    place, told = restored(target, tmp_path)
    assert place == tmp_path / "checkpoints" / "1.20"
    assert [line for line in told if "other bytes than its name says" in line]
    assert names(tmp_path / "checkpoints") == ["1.20"]
    with pytest.raises(UploadDamaged):
        restored(target, tmp_path, void=("1.10", "1.20"))


def test_a_target_without_the_run_has_none(target: Target, tmp_path: Path) -> None:
    found = bring_newest_back(target, run="other", folder=tmp_path, survives=lambda _: True, tell=print, read=as_it_is)
    assert found is None


def test_one_that_lacks_a_part_is_passed_over(target: Target, tmp_path: Path) -> None:
    next((tmp_path / "target" / "r" / "2.15" / PARTS).iterdir()).unlink()
    place, told = restored(target, tmp_path)
    assert place == tmp_path / "checkpoints" / "1.20"
    assert [line for line in told if "is gone from the target" in line]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 40], ids=["empty", "of nothing", "garbled"])
def test_one_whose_marker_is_garbled_is_passed_over(target: Target, tmp_path: Path, content: bytes) -> None:
    """Else one bad object at the target keeps the run from starting, with whole checkpoints beside it."""
    (tmp_path / "target" / "r" / "2.15" / MARKER).write_bytes(content)
    place, told = restored(target, tmp_path)
    assert place == tmp_path / "checkpoints" / "1.20"
    assert [line for line in told if line.startswith("r/2.15: upload.json is none")]


def test_nothing_is_fetched_that_is_larger_than_its_marker_says(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = next((tmp_path / "target" / "r" / "2.15" / PARTS).iterdir())
    part.write_bytes(bytes(10 * part.stat().st_size))
    read = target.read

    def watched(name: str) -> bytes:
        assert not name.endswith(part.name)
        return read(name)

    monkeypatch.setattr(target, "read", watched)
    place, told = restored(target, tmp_path)
    assert place == tmp_path / "checkpoints" / "1.20"
    assert [line for line in told if "its marker says" in line]


def test_one_that_the_learner_cannot_read_is_removed_again_and_the_next_is_taken(
    target: Target, tmp_path: Path
) -> None:
    def read(place: Path) -> Path:
        if place.name == "2.15":
            raise CheckpointError("the model is of another format")
        return place

    place, told = restored(target, tmp_path, read=read)
    assert place == tmp_path / "checkpoints" / "1.20"
    assert told == ["what was uploaded is no checkpoint: the model is of another format"]
    assert names(tmp_path / "checkpoints") == ["1.20"]


def test_a_target_that_is_away_is_no_absent_checkpoint(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else training would go on from an older one, or from the beginning, because of a moment without a network."""

    def away(*_: object, **__: object) -> bytes:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(target._fs, "cat_file", away)
    with pytest.raises(UploadError, match="no route to host") as raised:
        restored(target, tmp_path)
    assert not isinstance(raised.value, UploadDamaged)


def test_retention_keeps_the_newest_and_what_is_still_being_uploaded(target: Target, tmp_path: Path) -> None:
    for begun in ("1.15", "2.25"):
        (tmp_path / "target" / "r" / begun / PARTS).mkdir(parents=True)
    removed = prune_uploads(target, run="r", keep=2)
    assert sorted(map(str, removed)) == ["1.15", "1.20"], "lineage 2 grew out of 1.10: 1.20 was given up"
    assert names(tmp_path / "target" / "r") == ["1.10", "2.15", "2.25"]


def test_what_survives_stays_though_nothing_of_the_newest_lineage_is_uploaded_yet(
    target: Target, tmp_path: Path
) -> None:
    """Lineage 3 grew out of 1.10 again, while an upload of lineage 2 came to its end."""
    known = [Version(lineage=3, step=10)]
    assert prune_uploads(target, run="r", keep=1, known=known) == []
    place, _ = restored(target, tmp_path, void=("1.20", "2.15"))
    assert place == tmp_path / "checkpoints" / "1.10"


def test_what_was_given_up_takes_no_place_though_the_first_of_the_lineage_was_passed_by(
    target: Target, tmp_path: Path
) -> None:
    known = [Version(lineage=2, step=10), Version(lineage=2, step=15)]
    send_checkpoint(
        job(make_checkpoint(tmp_path / "made", "2.30"), tmp_path / "target"),
        sender=free_sender(),
        stop=threading.Event(),
    )
    target.remove("r/2.15", is_folder=True)
    assert list(map(str, prune_uploads(target, run="r", keep=2, known=known))) == ["1.20"]
    assert names(tmp_path / "target" / "r") == ["1.10", "2.30"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"files": []}, "names the files"),
        ({"files": "none"}, "thing\\(s\\) are wrong"),
    ],
)
def test_a_marker_that_is_none_is_refused(target: Target, tmp_path: Path, change: object, said: str) -> None:
    content = orjson.loads((tmp_path / "target" / "r" / "1.10" / MARKER).read_bytes())
    assert isinstance(change, dict)
    with pytest.raises(UploadError, match=said):
        decode_marker(orjson.dumps({**content, **change}))


def test_a_marker_cannot_name_a_file_elsewhere(target: Target, tmp_path: Path) -> None:
    content = orjson.loads((tmp_path / "target" / "r" / "1.10" / MARKER).read_bytes())
    content["files"][0]["name"] = "../../model.safetensors"
    with pytest.raises(UploadError, match="names the files"):
        decode_marker(orjson.dumps(content))
    content["files"][0]["name"] = "model.safetensors"
    content["files"][0]["parts"][0]["digest"] = "../" + "a" * 61
    with pytest.raises(UploadError, match="do not make"):
        decode_marker(orjson.dumps(content))
