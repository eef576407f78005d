"""What is imported where: layers, and light starts."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from tests.unit.shape.tree import ROOT

# What `rlweave --help` may import besides the standard library. A name more makes every command slower.
HELP_MAY_IMPORT = {"click", "ops", "schemas"}
# What a reward plug-in gets by `import consumers.rewards.api`.
PLUGIN_MAY_IMPORT = {"consumers", "schemas"}
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "matplotlib"}
WITHOUT_TORCH = (
    "consumers.rewards.stage",
    "consumers.scheduler.stage",
    "ops.cli.audit",
    "ops.cli.bench",
    "ops.cli.dashboard",
    "ops.cli.demo",
    "ops.cli.replay",
    "ops.cli.report",
    "ops.cli.run",
    "ops.cli.runs",
    "ops.cli.services",
    "ops.cli.status",
    "ops.cli.topics",
    "ops.audit.run",
    "ops.dashboard.main",
    "ops.launch",
    "ops.replay.replay",
    "ops.report.write",
    "ops.run_stage",
    "ops.runs",
    "ops.services.manager",
    "ops.status",
    "ops.supervisor.supervisor",
    "pipeline.engines.base",
    "pipeline.engines.checks",
    "pipeline.engines.randomness",
    "pipeline.engines.scripted",
    "pipeline.engines.settings",
    "pipeline.weights.peer_stage",
    "producers.prompts.stage",
    "topics.kafka",
    "topics.memory",
)


def test_help_imports_only_these() -> None:
    code = "from ops.cli.main import main\ntry:\n  main(['--help'])\nexcept SystemExit as end:\n  assert end.code == 0"
    assert _loaded(code) == HELP_MAY_IMPORT


def test_a_reward_plug_in_imports_only_these() -> None:
    assert _loaded("import consumers.rewards.api") == PLUGIN_MAY_IMPORT


def test_what_needs_no_torch_does_not_import_it() -> None:
    loaded = _loaded("\n".join(f"import {name}" for name in WITHOUT_TORCH))
    assert loaded & HEAVY == set()
    assert "ops" in loaded


def test_the_contracts_on_imports_hold() -> None:
    pytest.importorskip("importlinter", reason="import-linter is in the extra `dev`")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ran = _python(code, "--no-cache")
    assert ran.returncode == 0, ran.stdout


def _loaded(code: str) -> set[str]:
    """Top-level modules, outside the standard library, that `code` loads and a bare interpreter does not."""
    ran = _python(f"{code}\nimport sys; print(); print(*sys.modules)")
    assert ran.returncode == 0, ran.stderr
    names = {name.partition(".")[0] for name in set(ran.stdout.splitlines()[-1].split()) - _bare()}
    return {name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")}


@cache
def _bare() -> frozenset[str]:
    """What .pth files of the environment load is there without us as well."""
    return frozenset(_python("import sys; print(*sys.modules)").stdout.split())


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
