"""`rlweave rewards compare`."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path

import click

from ops.cli.common import broker_options, json_flag, open_raw_log, saved_settings


@click.group()
def rewards() -> None:
    """Look at what rewards said."""


@rewards.command(short_help="Compare what two rewards said of the same samples.")
@click.argument("run")
@click.argument("a")
@click.argument("b")
@click.option("--worst", "num_worst", type=click.IntRange(min=0), default=5, show_default=True, help="Samples to show.")
@json_flag
@broker_options
def compare(
    run: str,
    *,
    a: str,
    b: str,
    num_worst: int,
    as_json: bool,
    kafka: str | None,
    runs_dir: Path,
    state_dir: Path,
) -> None:
    """Compare what rewards A and B said of the same samples of RUN: agreement, correlation, worst disagreements.

    A reward is given by its name, on `rewards` or `shadow-rewards`; NAME@VERSION takes what one version of its plug-in
    said. Nothing is committed.
    """
    import orjson

    from ops.replay.sources import KafkaSource
    from ops.rewards.collect import compare_rewards
    from ops.rewards.show import as_json as values_of
    from ops.rewards.show import lines_of

    log = open_raw_log(kafka, settings=saved_settings(run, runs_dir=runs_dir), state_dir=state_dir)
    compared = compare_rewards(KafkaSource(log, run=run), (a, b), num_worst=num_worst)
    if as_json:
        click.echo(orjson.dumps(values_of(compared), option=orjson.OPT_INDENT_2).decode())
        return
    for line in lines_of(compared):
        click.echo(line)
