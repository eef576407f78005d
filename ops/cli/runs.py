"""`rlweave runs list|compare|resume|delete|curves|export`."""

# ruff: noqa: PLC0415

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.common import ago, broker_options, json_flag, known_settings, open_raw_log, saved_settings

if TYPE_CHECKING:
    from ops.export_curves import Format
    from ops.report.summary import RunSummary
    from ops.runs import RunSeen


@click.group()
def runs() -> None:
    """List, compare, resume and delete runs."""


@runs.command("list")
@json_flag
@broker_options
def list_(*, as_json: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> None:
    """Show every run on the broker or under --dir."""
    import orjson

    from ops.runs import list_runs
    from topics.clock import SystemClock

    seen = list_runs(open_raw_log(kafka, settings=None, state_dir=state_dir), runs_dir=runs_dir)
    if as_json:
        click.echo(orjson.dumps([_values(run) for run in seen], option=orjson.OPT_INDENT_2).decode())
        return
    rows = [_row(run, now_ms=SystemClock().unix_ms()) for run in seen]
    for line in columns(("run", "state", "lineage.step", "last event", "code", "folder"), rows):
        click.echo(line)
    if not rows:
        click.echo(f"no run on the broker, and none under {runs_dir}")


def columns(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A table whose columns are as wide as what is in them, two spaces apart."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(run: RunSeen, *, now_ms: int) -> tuple[str, ...]:
    version = f"{run.lineage}.{run.step}" if run.lineage else "-"
    last = "-" if run.last_unix_ms is None else f"{ago(now_ms - run.last_unix_ms)} ago"
    code = _made_of(run)["code_git"]
    return run.name, run.state, version, last, str(code)[:9] if code else "-", str(run.folder) if run.folder else "-"


@runs.command()
@click.argument("name")
@click.option("--quiet", is_flag=True, help="Print only what went wrong.")
@broker_options
def resume(name: str, *, quiet: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> int:
    """Go on with a run, with the settings it was started with."""
    from ops.launch import launch_all
    from ops.phases import BASE_FILE
    from ops.run_file import load_saved

    in_phases = runs_dir / name / BASE_FILE
    run_file = known_settings(name, runs_dir=runs_dir)
    if in_phases.is_file():
        run_file = load_saved(in_phases)
    if kafka:
        run_file = run_file.model_copy(update={"kafka": run_file.kafka.model_copy(update={"bootstrap": kafka})})
    return launch_all(run_file, state_dir=state_dir, quiet=quiet)


@runs.command()
@click.argument("name")
@click.option("--files", is_flag=True, help="Delete the run's folder, too: checkpoints, weights and logs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
def delete(name: str, *, files: bool, yes: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> None:
    """Delete a run's topics; refused while its processes are at work."""
    from ops.runs import delete_run
    from topics.catalog import check_run_name

    check_run_name(name)
    settings = saved_settings(name, runs_dir=runs_dir)
    log = open_raw_log(kafka, settings=settings, state_dir=state_dir, role="admin")
    what = f"the topics of run {name}" + (f" and {runs_dir / name}" if files else "")
    if not yes:
        _ask(f"Delete {what}? This cannot be undone")
    for gone in delete_run(log, name, folder=runs_dir / name if files else None):
        click.echo(f"deleted {gone}")


def _ask(question: str) -> None:
    """Go on only when a person says yes.

    Raises:
        SettingsError: there is no terminal, and nobody said yes.
    """
    from schemas.errors import SettingsError

    try:
        click.confirm(question, abort=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise SettingsError("nothing was deleted: there is no terminal to say yes on", hint="add --yes") from None


@runs.command(short_help="Show settings, versions and figures of several runs.")
@click.argument("names", nargs=-1, required=True)
@json_flag
@broker_options
def compare(names: tuple[str, ...], *, as_json: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> None:
    """Show runs beside each other: settings and versions that differ, seeds, offsets on the topics, final figures.

    A name is a run's, or a folder that `rlweave retrain` made. Figures come from the run's summary.json, or, where it
    has none of the last launch, from its topics.
    """
    from ops.run_compare import compare as beside
    from ops.run_compare import read_card, text, to_json

    def from_topics(name: str) -> RunSummary | None:
        return _from_topics(name, kafka=kafka, runs_dir=runs_dir, state_dir=state_dir)

    found = beside([read_card(name, runs_dir=runs_dir, from_topics=from_topics) for name in names])
    click.echo(to_json(found) if as_json else text(found))


@runs.command(short_help="Draw the curves of several retrained runs.")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--into",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The plot: .svg, .png or .pdf.",
)
def curves(folders: tuple[Path, ...], *, into: Path) -> None:
    """Draw the curves of several `rlweave retrain --into FOLDER` into one file."""
    from ops.curves import read_curve, write_curves

    write_curves([read_curve(folder) for folder in folders], into)
    click.echo(f"{into}: {len(folders)} curve(s)")


@runs.command(short_help="Write the curves of a run for TensorBoard or W&B.")
@click.argument("name")
@click.option(
    "--into", required=True, metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Folder to write to."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("tensorboard", "wandb")),
    default="tensorboard",
    show_default=True,
    help="An event file, which needs nothing, or an offline run, which needs the extra wandb.",
)
@broker_options
def export(name: str, *, into: Path, form: Format, kafka: str | None, runs_dir: Path, state_dir: Path) -> None:
    """Write the curves of a run for TensorBoard, or as an offline run of Weights & Biases. Nothing is sent anywhere."""
    from ops.cli.common import open_log
    from ops.export_curves import export_curves
    from pipeline.stage import CONNECT_S
    from topics.clock import Deadline

    settings = known_settings(name, runs_dir=runs_dir)
    log = open_log(kafka, settings=settings, state_dir=state_dir)
    log.connect(deadline=Deadline.after(CONNECT_S))
    num_points = export_curves(log, settings, into=into, form=form)
    click.echo(f"{into}: {num_points} points for {form}")


def _from_topics(name: str, *, kafka: str | None, runs_dir: Path, state_dir: Path) -> RunSummary | None:
    """Figures of a run from its topics; None: no broker is known, or it has none of them."""
    from ops.cli.common import AddressUnknown, open_log
    from ops.report.collect import collect, summarise
    from pipeline.stage import CONNECT_S
    from schemas.errors import LogUnavailable
    from topics.clock import Deadline

    settings = saved_settings(name, runs_dir=runs_dir)
    if settings is None:
        return None
    try:
        log = open_log(kafka, settings=settings, state_dir=state_dir)
        log.connect(deadline=Deadline.after(CONNECT_S))
    except (AddressUnknown, LogUnavailable):
        return None
    if not log.admin().describe():
        return None
    return summarise(collect(log, run_file=settings), run_file=settings)


def _values(run: RunSeen) -> dict[str, object]:
    return {
        "name": run.name,
        "state": run.state,
        "lineage": run.lineage,
        "step": run.step,
        "topics": run.topics,
        "last_event_unix_ms": run.last_unix_ms,
        "folder": None if run.folder is None else str(run.folder),
        **_made_of(run),
    }


def _made_of(run: RunSeen) -> dict[str, object]:
    """What its last launch was made of; None: not known."""
    from ops.run_record import read_records

    records = [] if run.folder is None else read_records(run.folder)
    began = next((each for each in reversed(records) if each.get("event") == "began"), {})
    versions = began.get("versions")
    code = versions.get("code_git") if isinstance(versions, dict) else None
    return {
        "code_git": code,
        "seeds": began.get("seeds"),
        "launches": sum(each.get("event") == "began" for each in records),
    }
