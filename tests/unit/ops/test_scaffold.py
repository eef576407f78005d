"""`rlweave new`: what it writes runs as it is, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumers.rewards.testing import sample, verdicts_of
from ops.cli.main import cli
from ops.scaffold.environment import new_environment
from ops.scaffold.files import title_of
from ops.scaffold.reward import new_reward
from schemas.errors import SettingsError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("reward", "--plugin {folder}/my_own.py:score --from-beginning"),
        ("environment", "environment.plugin={folder}/my_own.py:MyOwn"),
    ],
)
def test_the_files_run_as_they_are(tmp_path: Path, kind: str, hint: str) -> None:
    result = CliRunner().invoke(cli, ["new", kind, "my-own", "--into", str(tmp_path)], standalone_mode=False)
    assert result.exception is None
    assert hint.format(folder=tmp_path) in result.output
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_own.py"]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    with pytest.raises(SettingsError, match="exists already"):
        new_reward("mine", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]


@pytest.mark.parametrize("name", ["My", "../x", "2fast", ""])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="name"):
        new_reward(name, folder=tmp_path)
    with pytest.raises(SettingsError, match="environment name"):
        new_environment(name, folder=tmp_path)


def test_a_class_is_not_named_as_a_keyword() -> None:
    assert [title_of(Path(f"{name}.py")) for name in ("none", "two_words")] == ["None_", "TwoWords"]


@pytest.mark.parametrize(
    "plugin", ["length", "slow_length", "Batched"], ids=["a function", "an async function", "batches"]
)
def test_every_form_of_a_reward_can_be_tested(plugin: str) -> None:
    found = verdicts_of(f"tests.unit.consumers.rewards.plugins:{plugin}", [sample("four"), sample("seven!!")])
    assert [one.value for one in found] == [4.0, 7.0]


def test_a_batch_that_raises_is_failures() -> None:
    found = verdicts_of("tests.unit.consumers.rewards.plugins:Batched", [sample("bad"), sample("x")])
    assert [(one.value, one.failure) for one in found] == [(None, "ValueError: a bad item")] * 2
