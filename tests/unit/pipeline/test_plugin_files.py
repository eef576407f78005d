"""Plug-ins that fail while they are imported or made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from consumers.rewards.plugin import load_scorer
from consumers.rewards.settings import RewardSettings
from pipeline.environments.opening import open_environment
from pipeline.environments.settings import EnvironmentSettings
from pipeline.plugins import load_plugin
from schemas.errors import PluginError


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise RuntimeError('at import')", "RuntimeError"),
        ("1 / 0", "ZeroDivisionError"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
    ],
)
def test_whatever_a_file_raises_is_told_with_its_name(code: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(PluginError, match=rf"mine\.py failed while it was imported: {why}"):
        load_plugin(f"{file}:decide", group="rlweave.policies", builtins={})


def test_a_module_that_fails_or_exits_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving_module.py").write_text("import sys; sys.exit(0)")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(PluginError, match="'leaving_module' failed while it was imported: SystemExit: 0"):
        load_plugin("leaving_module:decide", group="rlweave.policies", builtins={})


@pytest.mark.parametrize("error", ["RuntimeError('no device')", "SystemExit(0)"])
def test_what_fails_while_it_is_made_is_told(error: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"class Mine:\n    def __init__(self):\n        raise {error}\n    def score(self, sample): ...\n")
    said = f"could not be made.*: {error.partition('(')[0]}: "
    with pytest.raises(PluginError, match=said):
        load_scorer(RewardSettings(plugin=f"{file}:Mine", isolation="thread"))
    with pytest.raises(PluginError, match=said):
        open_environment(EnvironmentSettings(plugin=f"{file}:Mine"))
