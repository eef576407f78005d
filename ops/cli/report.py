"""`rlweave report`: summary and report of a run, made again from its topics."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

from pathlib import Path

import click

from ops.cli.common import known_settings
from ops.cli.run import state_dir_option


@click.command()
@click.option("--run", "name", required=True, help="Name of the run.")
@click.option(
    "--dir",
    "runs_dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Parent of the run's folder.",
)
@click.option("--kafka", metavar="HOST:PORT", help="Read from this broker instead of the one in the settings.")
@state_dir_option
def report(name: str, *, runs_dir: Path, kafka: str | None, state_dir: Path) -> int:
    """Write summary.json and report.html into the run's folder, from its topics and its settings.json."""
    from ops.addresses import resolve
    from ops.audit.run import audit_run
    from ops.outputs import check_folder, writing
    from ops.report.write import REPORT_FILE, write_report
    from ops.wiring import open_log
    from pipeline.stage import CONNECT_S
    from topics.access import READER
    from topics.clock import Deadline

    run_file = known_settings(name, runs_dir=runs_dir)
    if kafka is not None:
        run_file = run_file.model_copy(update={"kafka": run_file.kafka.model_copy(update={"bootstrap": kafka})})
    check_folder(run_file.run.folder, setting="run.dir")
    run_file = resolve(run_file, state_dir=state_dir, start=False)
    log = open_log(run_file, role=READER)
    log.connect(deadline=Deadline.after(CONNECT_S))
    audit = audit_run(log, run_file=run_file)
    with writing(run_file.run.folder, setting="run.dir"):
        summary = write_report(log, run_file=run_file, audit=audit, wall_s=None)
    click.echo(summary.text())
    click.echo(f"report: {run_file.run.folder / REPORT_FILE}")
    return 0
