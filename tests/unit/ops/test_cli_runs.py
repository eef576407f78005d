"""`rlweave runs` and what the commands say of a run that nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.main import cli, main
from ops.cli.runs import columns
from schemas.errors import SettingsError

UNKNOWN = (
    ("report", "--run", "gone"),
    ("runs", "resume", "gone"),
    ("runs", "export", "gone", "--into", "out"),
    ("runs", "compare", "gone"),
    ("retrain", "--run", "gone", "--into", "out"),
    ("export", "--run", "gone", "out"),
)


@pytest.mark.parametrize("arguments", UNKNOWN, ids=lambda each: " ".join(each[:2]))
def test_an_unknown_run_is_one_error_with_one_code(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert "runs/gone has no saved settings" in said
    assert "Errno" not in said
    assert "`rlweave runs list` shows the runs there are" in said


def test_a_delete_that_nobody_says_yes_to_says_what_to_add(tmp_path: Path) -> None:
    arguments = ["runs", "delete", "gone", "--kafka", "127.0.0.1:1", "--dir", str(tmp_path)]
    said = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(said.exception, SettingsError), said
    assert "nothing was deleted" in said.exception.message
    assert said.exception.hint == "add --yes"


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    name = "a-name-of-more-than-twenty-four-letters"
    lines = list(columns(("run", "state", "folder"), [(name, "finished", "-"), ("b", "folder only", "runs/b")]))
    assert lines == [
        f"run{' ' * (len(name) - 3)}  state        folder",
        f"{name}  finished     -",
        f"b{' ' * (len(name) - 1)}  folder only  runs/b",
    ]
