"""`rlweave dashboard`: a run in the browser."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.common import broker_options, open_log_of, open_raw_log, saved_settings

if TYPE_CHECKING:
    from ops.dashboard.runs import Reached
    from ops.run_file import RunFile

DEFAULT_PORT = 9190
BUFFER_BYTES = 2 * 1024 * 1024  # that a reading of a few records goes ahead


@click.command()
@click.argument("run", required=False)
@click.option(
    "--file",
    "run_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Run file: its run, on its broker.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Port; 0: a free one. Default: {DEFAULT_PORT}, or a free one where it is taken.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Ask for the token in this file, which is made if it is not there; needed beyond this machine.",
)
@broker_options
def dashboard(
    run: str | None,
    *,
    run_file: Path | None,
    host: str,
    port: int | None,
    token_file: Path | None,
    kafka: str | None,
    runs_dir: Path,
    state_dir: Path,
) -> None:
    """Show RUN, or the list of runs, in the browser at the address that is printed.

    A run that goes on is shown live, one that ended from its topics. Reads only.
    """
    from ops.dashboard.main import serve_forever
    from ops.dashboard.runs import Runs
    from ops.dashboard.server import DashboardSettings
    from ops.run_file import load_run_file
    from ops.runs import list_runs
    from schemas.errors import SettingsError
    from topics.catalog import check_run_name

    given = None if run_file is None else load_run_file(run_file)
    if given is not None and run not in (None, given.run.name):
        raise SettingsError(f"RUN is {run!r}, and {run_file} describes {given.run.name!r}", hint="give one of the two")
    name = given.run.name if given is not None else run
    if name is not None:
        check_run_name(name)

    def settings_of(wanted: str) -> RunFile | None:
        found = saved_settings(wanted, runs_dir=runs_dir)
        return given if found is None and given is not None and wanted == given.run.name else found

    def reach(wanted: str) -> Reached:
        from ops.dashboard.main import reached
        from ops.replay.sources import KafkaSource

        settings = settings_of(wanted)
        known = settings if settings is not None else given
        source = KafkaSource(
            open_raw_log(kafka, settings=known, state_dir=state_dir, buffer_bytes=BUFFER_BYTES), run=wanted
        )
        log = open_log_of(kafka, run=wanted, partitions=source.data_partitions, settings=known, state_dir=state_dir)
        return reached(log, source, settings=settings)

    raw_log = open_raw_log(kafka, settings=settings_of(name) if name is not None else given, state_dir=state_dir)
    runs = Runs(reach, seen=lambda: list_runs(raw_log, runs_dir=runs_dir))
    if name is not None:
        runs.open(name)  # a run that is not there is said here, not in the browser
    token = None if token_file is None else _token(token_file)
    listen = DashboardSettings(host=host, port=DEFAULT_PORT if port is None else port, token=token)
    serve_forever(listen, runs, path=f"/run/{name}" if name is not None else "/", may_move=port is None, say=_say)


def _say(url: str) -> None:
    click.echo(f"dashboard: {url}")
    click.echo("(Ctrl-C ends it)", err=True)


def _token(file: Path) -> str:
    from ops.outputs import writing
    from pipeline.weights.tokens import load_or_create_token

    with writing(file, setting="--token-file"):
        return load_or_create_token(file)
