"""The recipe for several machines: its settings are settings, and agree where machines must."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ops.cli.run import STAGES
from ops.run_checks import check_run
from ops.run_file import RunFile, parse_run_file

PAGE = (Path(__file__).parents[3] / "docs" / "hosts.md").read_text(encoding="utf-8")


def run_files() -> list[RunFile]:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return [parse_run_file(tomllib.loads(block), origin="docs/hosts.md") for block in blocks]


def test_the_settings_of_both_machines_work_and_agree() -> None:
    train, gpu = run_files()
    for each in (train, gpu):
        assert check_run(each) == []
    assert train.run == gpu.run
    assert train.kafka == gpu.kafka
    assert train.redis == gpu.redis
    assert train.rewards == gpu.rewards
    assert train.weights.host != gpu.weights.host
    same = {"host": "", "port": 1, "domain": ""}
    assert train.weights.model_copy(update=same) == gpu.weights.model_copy(update=same)


def test_the_machines_together_start_every_stage() -> None:
    started = [stage for names in re.findall(r"--only (\S+)", PAGE) for stage in names.split(",")]
    assert set(started) == set(STAGES)
    assert started.count("peer") == 2, "every machine has a peer process of its own"
