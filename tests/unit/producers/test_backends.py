"""Engines by name: what a plug-in may be, and that naming one imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.settings import ModelSettings
from schemas.errors import PluginError

SETTINGS = BackendSettings(model=ModelSettings(path=Path("none")), max_sequences=3, num_threads=1)


def test_scripted() -> None:
    assert open_backend("scripted", SETTINGS).engine.num_free_slots == 3


def test_user_backend(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from pipeline.engines.backends import scripted_backend as mine\n")
    assert open_backend(f"{path}:mine", SETTINGS).engine.num_free_slots == 3


def test_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def wrong(settings): return 7\n")
    with pytest.raises(PluginError, match="not a Backend"):
        open_backend(f"{path}:wrong", SETTINGS)


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(PluginError, match="vllm9") as caught:
        open_backend("vllm9", SETTINGS)
    assert "scripted, torch" in caught.value.hint


@pytest.mark.parametrize(
    "module", ["producers.prompts.stage", "producers.rollout.stage", "pipeline.weights.peer_stage"]
)
def test_stages_import_without_torch(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'reasoning_gym') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
