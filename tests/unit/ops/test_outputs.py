"""Output paths: what cannot be written is named before any work, and looking leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.main import cli
from ops.holding import hold
from ops.outputs import check_file, check_folder, writing
from ops.run_file import load_run_file, save_run_file
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL

UNWRITABLE = Path("/proc/rlweave-no")


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as caught:
        action()
    assert caught.value.hint
    return caught.value.message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("content")
    return path


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", setting="--into")
    check_file(tmp_path / "a" / "b.json", setting="--json")
    check_folder(tmp_path, setting="--into")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_keeps_its_content(file: Path) -> None:
    check_file(file, setting="--json")
    assert file.read_text() == "content"


def test_the_standard_output_and_devices_are_no_files_to_make() -> None:
    check_file(Path("-"), setting="--json")
    check_file(Path("/dev/null"), setting="--json")


@pytest.mark.parametrize("check", [check_folder, check_file])
def test_a_place_where_nothing_can_be_made_is_named(check: Callable[..., None], file: Path) -> None:
    said = refusal(lambda: check(UNWRITABLE / "x", setting="--into"))
    assert said.startswith("--into: /proc/rlweave-no/x cannot be written: nothing can be made in /proc")
    assert f"{file} is a file, not a folder" in refusal(lambda: check(file / "x", setting="--into"))


def test_a_file_in_place_of_a_folder_is_named(file: Path) -> None:
    assert f"{file} is a file" in refusal(lambda: check_folder(file, setting="--into"))


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    assert "it is a folder" in refusal(lambda: check_file(tmp_path, setting="--json"))


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert "too long" in refusal(lambda: check_folder(tmp_path / ("n" * 300), setting="run.dir"))
    assert "too long" in refusal(lambda: check_file(tmp_path / ("n" * 300), setting="--json"))
    assert "zero byte" in refusal(lambda: check_folder(tmp_path / "a\0b", setting="run.dir"))


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    assert "is a link to nowhere" in refusal(lambda: check_folder(link, setting="--into"))


def test_what_fails_later_is_named_as_well(tmp_path: Path) -> None:
    def write() -> None:
        with writing(tmp_path, setting="--json"):
            tmp_path.write_text("")

    assert refusal(write) == f"--json: {tmp_path} cannot be written: Is a directory"


def test_a_run_folder_that_cannot_be_made_is_no_lock_problem() -> None:
    def go() -> None:
        with hold(UNWRITABLE / "demo", stages=("learner",)):
            pass

    assert "the lock /proc/rlweave-no/demo/locks/learner.lock cannot be made" in refusal(go)


@pytest.mark.parametrize(
    "arguments",
    [
        ["retrain", "--run", "little", "--into", "PATH"],
        ["replay", "--run", "little", "--jsonl", "PATH"],
        ["replay", "--run", "little", "--to-dump", "PATH"],
        ["audit", "--run", "little", "--json", "PATH"],
        ["export", "--run", "little", "PATH"],
        ["bench", "codec", "--quick", "--json", "PATH"],
        ["chaos", "--quick", "--dir", "PATH"],
        ["chaos", "--quick", "--json", "PATH"],
        ["demo", "--set", "run.dir='PATH'"],
        ["demo", "--set", "model.path='PATH'"],
        ["token", "PATH"],
        ["up", "--config", "run.toml", "--set", "run.dir='PATH'"],
        ["up", "--config", "run.toml", "--check", "--set", "run.dir='PATH'"],
        ["up", "--config", "run.toml", "--only", "learner", "--set", "learner.oracle_file='PATH'"],
    ],
)
@pytest.mark.parametrize("path", ["/proc/rlweave-no", "file/below"])
def test_every_command_names_its_output_before_it_works(
    arguments: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("run.toml").write_text(MINIMAL)
    Path("model").mkdir()
    Path("model/config.json").touch()
    settings = load_run_file(Path("run.toml"), overrides=["kafka.bootstrap=127.0.0.1:1"])  # nobody answers there
    save_run_file(settings, Path("runs/little/settings.json"))
    before = sorted(tmp_path.rglob("*"))
    said = CliRunner().invoke(cli, [each.replace("PATH", path) for each in arguments])
    assert isinstance(said.exception, SettingsError), said
    assert path in said.exception.message
    assert "cannot be written" in said.exception.message
    assert sorted(tmp_path.rglob("*")) == before


def test_services_whose_folder_is_no_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = CliRunner().invoke(cli, ["runs", "list", "--state-dir", str(tmp_path / "file" / "x")])
    assert "Not a directory" in str(said.exception)
    assert type(said.exception).__name__ == "ServicesError"
