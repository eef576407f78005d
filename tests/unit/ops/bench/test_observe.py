"""The planted faults are settings that a run file takes, and what was seen of them comes out in numbers."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import pytest

from ops.bench.observe.bench import Seen, observe_result, usual_of
from ops.bench.observe.faults import FAULTS, Fault, Usual
from ops.bench.result import Noise
from ops.bench.soak import BenchError
from ops.live.picture import RunPicture, Verdict
from ops.run_file import load_run_file
from tests.unit.ops.live.pictures import picture

USUAL = Usual(samples_per_s=800.0, step_s=0.6, work_s=0.45, step_tokens=1_500.0, version_bytes=500_000.0)


def test_faults_are_settings_of_the_demo_and_follow_from_the_usual_run(tmp_path: Path) -> None:
    found = [plant(USUAL, tmp_path) for plant in FAULTS]
    assert [fault.kind for fault in found] == ["reward", "weights", "learner"]
    for fault in found:
        with as_file(files("ops") / "demo.toml") as path:
            load_run_file(path, overrides=fault.overrides)
    for plugin in tmp_path.glob("*.py"):
        compile(plugin.read_text(), str(plugin), "exec")
    assert "time.sleep(0.0125)" in (tmp_path / "slow_reward.py").read_text()
    assert "208333.3" in found[1].overrides[0]


def test_what_names_the_fault_and_when_is_in_the_numbers() -> None:
    fault = Fault(name="reward", kind="reward", what="slow", overrides=())
    looks = tuple(
        (at_s, Verdict(kind="reward" if at_s in (3.0, 4.0) else "rollout", text="x"))
        for at_s in (1.0, 2.0, 3.0, 4.0, 5.0)
    )
    seen = Seen(fault=fault, looks=looks, last=picture())
    none = Seen(fault=Fault(name="none", kind="", what="", overrides=()), looks=looks, last=picture())
    found = observe_result([none, seen], noise=Noise())
    assert found.values == {"reward_named_s": 3.0, "reward_named_share": 0.667}
    assert found.table.rows == (("reward", "3", "67%"),)


def test_a_run_that_made_no_steps_gives_no_sizes() -> None:
    with pytest.raises(BenchError, match="too few steps"):
        usual_of(RunPicture(run="r", now_ms=0, is_live=True, share_read=1.0, window_s=60.0))
