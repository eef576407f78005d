"""`rlweave token`: the secret that the hosts of a run share."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def token(file: Path) -> None:
    """Make FILE with a new token that peers ask for, readable for its owner only; one that is there stays.

    Copy it to every host of the run, and name it in weights.token_file there.
    """
    from ops.outputs import check_file, writing
    from pipeline.weights.tokens import load_or_create_token

    check_file(file, setting="FILE")
    with writing(file, setting="FILE"):
        is_new = not file.exists()
        load_or_create_token(file)
    click.echo(f"{file} {'holds a new token' if is_new else 'has a token already; it was left as it is'}")
