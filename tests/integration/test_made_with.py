"""`rlweave up` over a run that was made with other settings: refused before topics or settings are touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.main import cli
from ops.run_file import load_run_file, save_run_file
from ops.runs import runs_on
from ops.services.model import ServicesInfo
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL
from topics.kafka.raw import RawLog

pytestmark = pytest.mark.integration


def test_up_over_a_run_of_another_group_size_writes_nothing(
    services: ServicesInfo, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(MINIMAL)
    Path("tasks.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    given = [f"run.name={run_name}", f"kafka.bootstrap={services.kafka_bootstrap}", "redis.url=none"]
    saved = tmp_path / "runs" / run_name / "settings.json"
    save_run_file(load_run_file(Path("run.toml"), overrides=[*given, "run.group_size=16"]), saved)
    before = saved.read_bytes()
    said = CliRunner().invoke(
        cli, ["up", "--config", "run.toml", *(part for each in given for part in ("--set", each))]
    )
    assert isinstance(said.exception, SettingsError), said
    assert "run.group_size: the run has 16, the run file has 8" in said.exception.message
    assert saved.read_bytes() == before
    assert run_name not in runs_on(RawLog(services.kafka_bootstrap).partition_counts())
