"""A soak of seconds: every process is measured, and what was started is gone."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from ops.cli.bench import bench

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_soak_measures_every_process(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    arguments = ["soak", "--minutes", "0.2", "--json", str(file)]
    done = CliRunner().invoke(bench, arguments, standalone_mode=False, catch_exceptions=False)
    assert done.return_value == 0
    values = orjson.loads(file.read_bytes())
    assert values["soak_samples"] > 0
    assert values["soak_balanced"] == 1
    assert values["soak_restarts"] == 0
    for name in ("learner", "peer", "prompts", "reward_sum_0", "rollout_0", "rollout_1", "scheduler", "broker_1"):
        assert values[f"{name}_rss_mib"] > 10
