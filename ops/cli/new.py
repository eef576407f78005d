"""`rlweave new reward NAME`, `rlweave new environment NAME`."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def new() -> None:
    """Write the first files of a plug-in of your own."""


_INTO = click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder; default: this one."
)


@new.command()
@click.argument("name")
@_INTO
def reward(name: str, *, into: Path) -> None:
    """Write a reward and its test; both run as they are."""
    from ops.scaffold.reward import new_reward

    file, test = new_reward(name, folder=into)
    click.echo(f"{file}\n{test}")
    click.echo(
        f"\ntest it:         pytest {test}\n"
        f"score a run:     rlweave run reward --config runs/RUN/settings.json --name {name} --plugin {file}:score "
        "--from-beginning\n"
        f'train with it:   [rewards.{name}]\n                 plugin = "{file}:score"'
    )


@new.command()
@click.argument("name")
@_INTO
def environment(name: str, *, into: Path) -> None:
    """Write an environment and its test; both run as they are."""
    from ops.scaffold.environment import new_environment
    from ops.scaffold.files import title_of

    file, test = new_environment(name, folder=into)
    plugin = f"{file}:{title_of(file)}"
    click.echo(f"{file}\n{test}")
    click.echo(
        f"\ntest it:         pytest {test}\n"
        f"see it learned:  rlweave demo --task guess --set environment.plugin={plugin} "
        "--set 'environment.options={}'\n"
        f'train with it:   [environment]\n                 plugin = "{plugin}"\n'
        '                 [rewards.return]\n                 plugin = "environment"'
    )
