"""The command line as a whole: what it says when a package of an extra is not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from ops.cli.main import cli, missing_package


def test_a_command_without_its_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from ops.cli.main import main; main(['demo'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr == "error: package 'torch' is not installed\nhint: pip install 'rlweave[torch]'\n"
    assert ran.returncode == 2


def test_a_module_of_no_extra_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"ours\.gone"):
        missing_package(ModuleNotFoundError("No module named 'ours.gone'", name="ours.gone"))


def _helps(command: click.Command, *, name: str) -> Iterator[tuple[str, str]]:
    """Names and helps of a command and of those below, as a terminal of 80 columns shows them."""
    context = click.Context(command, info_name=name, terminal_width=80)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _helps(found, name=f"{name} {below}")


def test_helps_fit_80_columns_and_no_summary_is_cut_off() -> None:
    helps = dict(_helps(cli, name="rlweave"))
    assert len(helps) > 30
    for name, text in helps.items():
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80, name
        assert not [line for line in lines[1:] if line.endswith("...")], name
    assert "rlweave bench [OPTIONS] NAME\n" in helps["rlweave bench"]
