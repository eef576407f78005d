"""`rlweave acls` prints what each role needs, from the run file alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops.cli.main import cli
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL
from topics.access import ROLES


def call(folder: Path, *arguments: str) -> Result:
    config = folder / "run.toml"
    config.write_text(MINIMAL)
    given = ["acls", "--config", str(config), "--set", "kafka.bootstrap=broker:9092", "--set", "redis.url=none"]
    return CliRunner().invoke(cli, [*given, *arguments], catch_exceptions=False, standalone_mode=False)


def test_every_role_gets_its_commands(tmp_path: Path) -> None:
    lines = call(tmp_path).stdout.splitlines()
    assert all(line.startswith("kafka-acls.sh --bootstrap-server broker:9092 ") for line in lines)
    assert {line.split("--allow-principal User:")[1].split()[0] for line in lines} == set(ROLES)


def test_users_have_the_names_that_their_files_say_and_rewards_their_own_groups(tmp_path: Path) -> None:
    (tmp_path / "reward.user").write_text("scorer\n")
    secure = ["--set", "kafka.security=sasl_ssl", "--set", f"kafka.credentials_dir={tmp_path}"]
    said = call(tmp_path, "--role", "reward", "--json", *secure, "--set", "rewards.sum.group=of-my-own")
    rules = json.loads(said.stdout)
    assert {rule["principal"] for rule in rules} == {"User:scorer"}
    assert {"resource": "group", "name": "of-my-own", "operation": "read"}.items() <= next(
        rule for rule in rules if rule["name"] == "of-my-own"
    ).items()


def test_a_role_that_is_none_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no role 'trainer'") as caught:
        call(tmp_path, "--role", "trainer")
    assert "learner" in caught.value.hint
