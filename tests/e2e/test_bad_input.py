"""A mistake of a user on the command line: a clear error, the right exit code, no traceback, nothing started.

What ends before anything is started is called in this process, which has imported everything; what is a matter of the
process itself runs in one of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ops.cli.main import main
from ops.services.model import ServicesInfo
from ops.services.state import free_ports
from pipeline.exit_codes import ExitCode
from tests.e2e.processes import LIMIT_S, ROOT
from tests.e2e.support import Value, settings_of


@dataclass
class Said:
    """What a command left behind."""

    code: int
    text: str


@dataclass
class Desk:
    """Runs commands over a run file in a folder of its own."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    settings: dict[str, Value] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        path = self.folder / "run.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self.settings.items()))
        return path

    def call(self, *arguments: str) -> Said:
        """In this process."""
        with pytest.raises(SystemExit) as end:
            main(arguments)
        printed = self.capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Said(end.value.code, printed.out + printed.err)

    def spawn(self, *arguments: str) -> Said:
        """In a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "ops.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        said = Said(done.returncode, done.stdout + done.stderr)
        assert "Traceback" not in said.text, said.text
        return said

    def up(self, *overrides: str) -> Said:
        given = [part for override in overrides for part in ("--set", override)]
        return self.call("up", "--config", str(self.config), *given)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A run file whose broker and Redis do not exist; what is wrong with settings must be found before that matters."""
    (tmp_path / "tasks.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    kafka_port, redis_port = free_ports(2)
    settings: dict[str, Value] = {
        "run.name": "little",
        "run.dir": str(tmp_path / "runs"),
        "kafka.bootstrap": f"127.0.0.1:{kafka_port}",
        "redis.url": f"redis://127.0.0.1:{redis_port}/0",
        "model.path": str(tmp_path / "model"),
        "prompts.source.files": [str(tmp_path / "tasks.jsonl")],
        "rewards.sum.plugin": "number_match",
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)  # commands set their own
    yield Desk(tmp_path, capsys, settings)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("run.groups=3", ["run.groups"]),
        ("run.group_size=many", ["run.group_size", "'many'", "integer"]),
        ("run.group_size=0", ["run.group_size", "0", "greater than or equal to 1"]),
        ("run.on_stale=never", ["run.on_stale", "'never'", "'drop', 'wait' or 'train'"]),
        ("rollout.max_sequences=1", ["rollout.max_sequences = 1", "run.group_size = 8"]),
        ("rewards.sum.weight=0", ["nothing to learn from"]),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(desk: Desk, override: str, parts: list[str]) -> None:
    said = desk.up(override)
    assert said.code == ExitCode.USAGE, said.text
    assert said.text.startswith("error: ")
    assert all(part in said.text for part in parts), said.text
    assert not (desk.folder / "runs").exists()


def test_a_process_says_the_same_and_ends(desk: Desk) -> None:
    said = desk.spawn("up", "--config", str(desk.config), "--set", "run.groups=3")
    assert said.code == ExitCode.USAGE, said.text
    assert said.text == desk.up("run.groups=3").text
    assert not (desk.folder / "runs").exists()


def test_check_says_that_settings_are_fine_or_what_is_wrong_and_starts_nothing(desk: Desk) -> None:
    fine = desk.call("up", "--check", "--config", str(desk.config))
    assert (fine.code, "are fine" in fine.text) == (0, True), fine.text
    wrong = desk.call("up", "--check", "--config", str(desk.config), "--set", "run.min_group_members=99")
    assert (wrong.code, "run.min_group_members = 99" in wrong.text) == (ExitCode.USAGE, True), wrong.text
    warned = desk.call("up", "--check", "--config", str(desk.config), "--set", "run.max_staleness=0")
    assert (warned.code, "warning: run.max_staleness = 0" in warned.text) == (0, True), warned.text
    absent = desk.call("up", "--check", "--config", str(desk.config), "--set", "rewards.sum.plugin=numbermatch")
    assert (absent.code, "number_match" in absent.text) == (ExitCode.USAGE, True), absent.text
    assert not (desk.folder / "runs").exists()


def test_a_run_file_that_is_absent_is_named(desk: Desk) -> None:
    said = desk.call("up", "--config", "nowhere.toml")
    assert said.code == ExitCode.USAGE
    assert "nowhere.toml" in said.text


@pytest.mark.parametrize("arguments", [["up"], ["run", "learner"]])
def test_kafka_that_is_absent_is_named_with_what_to_do_and_the_command_ends(desk: Desk, arguments: list[str]) -> None:
    said = desk.spawn(*arguments, "--config", str(desk.config))
    assert said.code == ExitCode.UNAVAILABLE, said.text
    assert str(desk.settings["kafka.bootstrap"]) in said.text
    assert "hint: " in said.text


def test_a_redis_address_that_cannot_be_read_is_refused(desk: Desk) -> None:
    said = desk.up("redis.url=http://somewhere")
    assert said.code == ExitCode.USAGE, said.text
    assert "redis.url" in said.text
    assert "redis://" in said.text


def test_a_model_that_is_not_there_is_named_before_anything_starts(desk: Desk) -> None:
    said = desk.up("model.path=nowhere")
    assert said.code == ExitCode.USAGE, said.text
    assert "model.path = nowhere" in said.text
    assert not (desk.folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run", "nothing"], "'nothing'"),
        (["run", "reward", "--name", "other"], "'other' is not in the run file"),
        (["run", "reward", "--name", "other", "--plugin", "exact_match"], "--shadow"),
        (["run", "learner", "--shadow"], "belong to the stage reward"),
    ],
)
def test_options_that_do_not_fit_are_refused(desk: Desk, arguments: list[str], part: str) -> None:
    said = desk.spawn(*arguments, "--config", str(desk.config))
    assert said.code == ExitCode.USAGE, said.text
    assert part in said.text


@pytest.mark.integration
@pytest.mark.parametrize(
    ("stage", "changes", "parts"),
    [
        ("reward", {"rewards.sum.plugin": "no_such"}, ["'no_such'", "exact_match", "number_match", "module:attr"]),
        ("reward", {"rewards.sum.plugin": "no_such_module:x"}, ["no_such_module", "exact_match"]),
        ("reward", {"rewards.sum.plugin": "nowhere.py:Reward"}, ["nowhere.py", "does not exist"]),
        ("rollout", {"rollout.engine": "warp"}, ["'warp'", "torch", "module:attr"]),
        ("prompts", {"prompts.source.files": ["nowhere.jsonl"]}, ["nowhere.jsonl"]),
    ],
)
def test_a_plug_in_or_file_that_does_not_exist_is_named_with_those_that_do(
    services: ServicesInfo, run_name: str, desk: Desk, stage: str, changes: dict[str, Value], parts: list[str]
) -> None:
    base = settings_of(run_name, desk.folder, services=services, model=desk.folder / "model")
    desk.settings = base | changes
    said = desk.spawn("run", stage, "--config", str(desk.config))
    assert said.code == ExitCode.USAGE, said.text
    assert all(part in said.text for part in parts), said.text


@pytest.mark.integration
@pytest.mark.parametrize("stage", ["learner", "rollout"])
def test_a_model_that_does_not_exist_is_named(services: ServicesInfo, run_name: str, desk: Desk, stage: str) -> None:
    desk.settings = settings_of(run_name, desk.folder, services=services, model=desk.folder / "no-model")
    said = desk.spawn("run", stage, "--config", str(desk.config))
    assert said.code in (ExitCode.ERROR, ExitCode.USAGE), said.text
    assert "no-model" in said.text
