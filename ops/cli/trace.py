"""`rlweave trace`: the life of a prompt, a sample or a policy version."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

import os
from pathlib import Path

import click

from ops.cli.common import broker_options, json_flag, open_raw_log, saved_settings

_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@click.command()
@click.argument("words", metavar="RUN ID", nargs=-1, required=True)
@click.option("--otlp", metavar="URL", help="Send it as OpenTelemetry spans to this OTLP receiver (HTTP), too.")
@json_flag
@broker_options
def trace(
    words: tuple[str, ...], *, otlp: str | None, as_json: bool, kafka: str | None, runs_dir: Path, state_dir: Path
) -> None:
    """Show every hop of a life, when it began and what it took, from the records of the run; the slowest is marked.

    ID is a sample (GROUP/MEMBER, as in `rlweave trace demo 12/3` or `rlweave trace demo/12/3`), a prompt (GROUP), or a
    policy version (LINEAGE.STEP). With OTEL_EXPORTER_OTLP_ENDPOINT set, or --otlp, it is sent as spans as well.
    """
    import orjson

    from ops.replay.sources import KafkaSource
    from ops.trace.run import trace as life_of
    from ops.trace.show import as_json as values_of
    from ops.trace.show import lines_of
    from ops.trace.target import parse_target
    from topics.catalog import check_run_name

    target = parse_target(words)
    check_run_name(target.run)
    log = open_raw_log(kafka, settings=saved_settings(target.run, runs_dir=runs_dir), state_dir=state_dir)
    life = life_of(KafkaSource(log, run=target.run), target)
    if as_json:
        click.echo(orjson.dumps(values_of(life), option=orjson.OPT_INDENT_2).decode())
    else:
        for line in lines_of(life):
            click.echo(line)
    if otlp is not None or any(os.environ.get(name) for name in _VARIABLES):
        from ops.trace.otel import export

        num = export(life, endpoint=otlp)
        click.echo(f"{num} spans sent", err=True)
