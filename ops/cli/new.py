"""`rlweave new reward NAME`."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def new() -> None:
    """Write the first files of a plug-in of your own."""


@new.command()
@click.argument("name")
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder; default: this one."
)
def reward(name: str, *, into: Path) -> None:
    """Write a reward and its test; both run as they are."""
    from ops.rewards.scaffold import new_reward

    file, test = new_reward(name, folder=into)
    click.echo(f"{file}\n{test}")
    click.echo(
        f"\ntest it:         pytest {test}\n"
        f"score a run:     rlweave run reward --config runs/RUN/settings.json --name {name} --plugin {file}:score "
        "--from-beginning\n"
        f'train with it:   [rewards.{name}]\n                 plugin = "{file}:score"'
    )
