"""The guides: what they say to write into a run file is accepted, and the commands they name exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.resources import files
from pathlib import Path

import click
import pytest

from consumers.learner.recorded.changes import path_of
from consumers.rewards.builtin import BUILTINS
from ops.cli.main import cli
from ops.run_file import parse_run_file
from schemas.errors import SettingsError

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
REWARDS = (GUIDES / "write-a-reward.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", REWARDS, re.DOTALL))
def test_rewards_in_a_run_file_are_accepted(block: str) -> None:
    values = tomllib.loads((files("ops") / "demo.toml").read_text())
    values["rewards"] = tomllib.loads(block)["rewards"]
    assert parse_run_file(values, origin="guide").required_rewards


def test_every_built_in_reward_has_a_row() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|", REWARDS.split("## Built in")[1], re.MULTILINE)
    assert set(BUILTINS) <= set(rows)


@pytest.mark.parametrize("page", ["write-a-reward.md", "rescore-the-past.md", "lora.md"])
def test_commands_and_their_options_exist(page: str) -> None:
    for line in re.findall(r"^\$ rlweave (.*)$", (GUIDES / page).read_text(encoding="utf-8"), re.MULTILINE):
        words = line.split()
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            inner = command.get_command(click.Context(cli), words[0])
            assert inner is not None, line
            command = inner
            words.pop(0)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_adapters_in_a_run_file_are_accepted() -> None:
    page = (GUIDES / "lora.md").read_text(encoding="utf-8")
    values = tomllib.loads((files("ops") / "demo.toml").read_text())
    for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        values["learner"] |= tomllib.loads(block)["learner"]
    assert parse_run_file(values, origin="guide").learner.lora is not None


def test_the_settings_that_a_repetition_may_change_are_named() -> None:
    page = (GUIDES / "retrain-from-topics.md").read_text(encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        path_of("run.name")
    names = re.findall(r"[a-z]+\.[a-z_]+", refused.value.hint)
    assert len(names) > 10
    assert [
        name for name in names if f"`{name}`" not in page and f"`{name}." not in page and f"`{name}=" not in page
    ] == []


@pytest.mark.parametrize("page", ["quickstart.md", "troubleshooting.md"])
def test_every_command_of_a_page_exists_with_its_options(page: str) -> None:
    text = (GUIDES.parent / page).read_text(encoding="utf-8")
    lines = re.findall(r"^\$ (?:\.venv/bin/)?rlweave (.*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(cli), words.pop(0))
        assert command is not None, line
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_run_file_of_the_quickstart_is_accepted() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (GUIDES.parent / "quickstart.md").read_text("utf-8"), re.DOTALL)
    assert parse_run_file(tomllib.loads(block), origin="quickstart").required_rewards == {"answer": 1.0}
