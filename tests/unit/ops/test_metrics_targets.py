"""The files that tell Prometheus where processes are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import orjson
import pytest

from ops.metrics_targets import FOLDER, announce, expose_metrics, exposed, sweep, withdraw
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.errors import SettingsError
from topics.memory import MemoryLog

LABELS = {"run": "r", "stage": "reward"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


def ended(folder: Path, *, instance: str, stage: str = "reward") -> Path:
    """The file that a process which is gone left."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    path = announce(folder, instance=instance, address="127.0.0.1:1", labels={"run": "r", "stage": stage})
    content = orjson.loads(path.read_bytes())
    content[0]["labels"]["__pid"] = str(process.pid)
    path.write_bytes(orjson.dumps(content))
    return path


def context(log: MemoryLog, folder: Path, **fields: object) -> StageContext:
    settings = {"name": log.run, "dir": folder, "partitions": log.data_partitions, **fields}
    return make_context(log, run=RunSettings.model_validate(settings), stage="reward", instance="reward-1")


def test_a_file_has_the_address_and_the_labels(tmp_path: Path) -> None:
    path = announce(tmp_path, instance="reward-1", address="127.0.0.1:4000", labels=LABELS)
    (entry,) = orjson.loads(path.read_bytes())
    assert entry["targets"] == ["127.0.0.1:4000"]
    shown = {key: value for key, value in entry["labels"].items() if not key.startswith("__")}
    assert shown == {**LABELS, "instance": "reward-1"}
    assert entry["labels"]["__pid"] == str(os.getpid())
    assert names(tmp_path) == ["r.reward-1.json"]
    withdraw(path)
    withdraw(path)
    assert names(tmp_path) == []


def test_what_a_dead_process_left_goes_when_one_of_its_stage_comes(tmp_path: Path) -> None:
    ended(tmp_path, instance="reward-1")
    ended(tmp_path, instance="rollout-1", stage="rollout")
    announce(tmp_path, instance="reward-2", address="127.0.0.1:2", labels=LABELS)
    assert names(tmp_path) == ["r.reward-2.json", "r.rollout-1.json"]


def test_the_end_of_a_run_leaves_nothing_of_it(memory_log: MemoryLog, tmp_path: Path) -> None:
    other = announce(tmp_path, instance="x", address="127.0.0.1:3", labels={"run": "other", "stage": "reward"})
    supervisor = context(memory_log, tmp_path, metrics_port=0)
    with exposed(supervisor):
        left = ended(tmp_path, instance="reward-9")
        content = orjson.loads(left.read_bytes())
        content[0]["labels"]["run"] = memory_log.run
        left.write_bytes(orjson.dumps(content))
    assert names(tmp_path) == [other.name]


def test_files_that_are_not_ours_are_left(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name, content in {"a.json": b"[]", "b.json": b"no json", "c.json": b'[{"labels": 3}]'}.items():
        (folder / name).write_bytes(content)
    sweep(tmp_path, labels={"run": "r"})
    assert names(tmp_path) == ["a.json", "b.json", "c.json"]


def test_metrics_are_served_where_the_file_says(memory_log: MemoryLog, tmp_path: Path) -> None:
    process = context(memory_log, tmp_path, metrics_port=0)
    process.metrics.gauge("breaker_open", 1)
    path = expose_metrics(process)
    assert path is not None
    (entry,) = orjson.loads(path.read_bytes())
    with urlopen(f"http://{entry['targets'][0]}/metrics") as answer:
        assert b"rlweave_breaker_open{" in answer.read()


def test_an_ipv6_address_is_told_in_brackets(memory_log: MemoryLog, tmp_path: Path) -> None:
    path = expose_metrics(context(memory_log, tmp_path, metrics_port=0, metrics_host="::1"))
    assert path is not None
    (entry,) = orjson.loads(path.read_bytes())
    assert entry["targets"][0].startswith("[::1]:")


def test_without_a_port_nothing_is_served(memory_log: MemoryLog, tmp_path: Path) -> None:
    assert expose_metrics(context(memory_log, tmp_path)) is None
    assert not (tmp_path / FOLDER).exists()


def test_a_folder_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    with pytest.raises(SettingsError, match=r"cannot be written.*where the metrics of reward-1 are"):
        announce(tmp_path, instance="reward-1", address="127.0.0.1:4000", labels=LABELS)
