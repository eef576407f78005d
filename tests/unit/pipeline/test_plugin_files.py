"""Plug-in files that fail while they are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.plugins import load_plugin
from schemas.errors import PluginError


@pytest.mark.parametrize(
    ("code", "why"),
    [("raise RuntimeError('at import')", "RuntimeError"), ("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError")],
)
def test_whatever_a_file_raises_is_told_with_its_name(code: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(PluginError, match=rf"mine\.py failed while it was imported: {why}"):
        load_plugin(f"{file}:decide", group="rlweave.policies", builtins={})
