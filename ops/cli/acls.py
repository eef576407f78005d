"""`rlweave acls`: the access rules that each role of a run needs on the broker."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.run import config_option, set_option, state_dir_option

if TYPE_CHECKING:
    from ops.run_file import RunFile
    from topics.kafka.acls import Rule


@click.command()
@config_option
@set_option
@state_dir_option
@click.option("--role", "roles", multiple=True, help="One role only; may be repeated. Default: all.")
@click.option("--apply", "apply_them", is_flag=True, help="Set the rules, as the user of role admin.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def acls(
    config: Path,
    *,
    overrides: tuple[str, ...],
    state_dir: Path,
    roles: tuple[str, ...],
    apply_them: bool,
    as_json: bool,
) -> int:
    """Print the access rules of a run as calls of kafka-acls.sh, or set them.

    A role's user is what <role>.user in kafka.credentials_dir says, else the role's own name.
    """
    from ops.access import rules_of
    from ops.addresses import resolve
    from ops.run_file import load_run_file

    run_file = resolve(load_run_file(config, overrides=overrides), state_dir=state_dir, start=False)
    rules = rules_of(run_file, roles=roles)
    if apply_them:
        return _apply(run_file, rules)
    _print(rules, bootstrap=run_file.kafka.bootstrap, as_json=as_json)
    return 0


def _apply(run_file: RunFile, rules: list[Rule]) -> int:
    from ops.access import apply_rules

    added = apply_rules(run_file, rules)
    click.echo(f"{added} rules added, {len(rules) - added} were there; run {run_file.run.name}")
    return 0


def _print(rules: list[Rule], *, bootstrap: str, as_json: bool) -> None:
    import dataclasses
    import json

    from topics.kafka.acls import command_lines

    if as_json:
        values = [{"principal": principal, **dataclasses.asdict(grant)} for principal, grant in rules]
        click.echo(json.dumps(values, indent=2))
        return
    for line in command_lines(rules, bootstrap=bootstrap):
        click.echo(line)
