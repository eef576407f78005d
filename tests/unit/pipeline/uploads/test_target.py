"""Where checkpoints go: any file system, its errors in our words, no credentials in them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.uploads import target as target_module
from pipeline.uploads.settings import UploadSettings
from pipeline.uploads.target import UploadAbsent, check_target, open_target, safe_url
from schemas.errors import SettingsError, UploadError


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_what_is_written_is_listed_read_and_removed(tmp_path: Path, kind: str) -> None:
    target = open_target(f"{kind}://{tmp_path}/t")
    assert target.sizes("a/parts") == {}
    assert target.folders("a") == []
    target.make_folder("a/parts")
    target.write("a/parts/one", b"12345")
    target.write("a/parts/one", b"123")
    assert target.sizes("a/parts") == {"one": 3}
    assert target.folders("a") == ["parts"]
    assert target.read("a/parts/one") == b"123"
    target.remove("a/parts/one")
    target.write("a/parts/two", b"")
    target.remove("a", is_folder=True)
    assert target.folders("") == []
    with pytest.raises(UploadAbsent, match="a/parts/two is not there"):
        target.read("a/parts/two")


def test_what_was_cut_off_while_it_was_written_does_not_count(tmp_path: Path) -> None:
    target = open_target(f"file://{tmp_path}")
    (tmp_path / ".part-abc-12345678").write_bytes(b"half")
    assert target.sizes("") == {}


def test_a_file_system_that_is_not_there_is_named_before_anything_begins() -> None:
    for opened in (check_target, open_target):
        with pytest.raises(SettingsError, match=r"learner\.checkpoint\.upload.*nowhere") as raised:
            opened("nowhere://bucket/path")
        assert raised.value.hint is not None


def test_without_fsspec_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(target_module, "importlib", type("absent", (), {"import_module": staticmethod(missing)}))
    with pytest.raises(SettingsError, match="fsspec is not installed") as raised:
        check_target("file:///tmp")
    assert "rlweave[upload]" in (raised.value.hint or "")
    assert importlib.import_module("fsspec")


def test_urls_are_shown_without_login_and_query() -> None:
    assert safe_url("ftp://me:secret@host:21/a?token=x") == "ftp://host:21/a"


def test_words_of_a_library_show_no_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(f"memory://{tmp_path}/u")

    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("403 for https://me:pass@store/bucket/key?X-Signature=abc")

    monkeypatch.setattr(target._fs, "pipe_file", refuses)
    with pytest.raises(UploadError) as raised:
        target.write("key", b"1")
    assert "403" in raised.value.message
    assert "abc" not in raised.value.message
    assert "pass@" not in raised.value.message
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("checkpoints", "is no URL"),
        ("/mnt/checkpoints", "file:///"),
        ("ftp://me:secret@host/a", "holds a password"),
        ("s3://bucket/a?secret=abc", "holds a password"),
        ("https://host/a?sv=1&sig=abc", "holds a password"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        UploadSettings(upload=url)
    assert "abc" not in str(raised.value)
    assert "secret@" not in str(raised.value)
