"""What stays importable, and quick, where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("base", "checks", "randomness", "scripted", "settings")


def test_the_torch_free_modules_do_not_load_torch() -> None:
    names = ", ".join(f"pipeline.engines.{name}" for name in MODULES)
    code = f"import sys, {names}; print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
