"""A small chaos run, as `rlweave chaos` does it: real servers, real processes, real faults, and the judgement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.chaos import chaos

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KINDS = ("kill-learner", "kill-worker")


def test_a_run_gets_over_faults_and_keeps_its_promises(tmp_path: Path) -> None:
    asked = ["--quick", "--faults", str(len(KINDS)), "--seed", "3", "--limit", "60"]
    asked += ["--dir", str(tmp_path), "--json", str(tmp_path / "result.json")]
    asked += [word for kind in KINDS for word in ("--only", kind)]
    done = CliRunner().invoke(chaos, asked, standalone_mode=False)
    assert done.exception is None, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert done.return_value == 0, (done.output, result["findings"])
    assert {kind: figures["count"] for kind, figures in result["kinds"].items()} == dict.fromkeys(KINDS, 1)
    broken = {name: result[name] for name in ("lost", "trained_twice", "unaccounted", "hangs", "announced_losses")}
    assert broken == dict.fromkeys(broken, 0)
    assert result["ids_trained"] > 0
    assert result["recovery_p95_s"] > 0
    faults = (tmp_path / "chaos-3" / "chaos" / "faults.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in faults} == set(KINDS)
