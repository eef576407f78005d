"""`rlweave audit`: prove from the topics alone that every sample id has one outcome."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.common import broker_options, open_raw_log, saved_settings

if TYPE_CHECKING:
    from ops.audit.report import AuditReport
    from ops.replay.sources import Source
    from ops.run_file import RunFile


@click.command()
@click.option("--run", "run", metavar="NAME", help="Name of the run, or of a copy of one.")
@click.option(
    "--from",
    "dump",
    type=click.Path(path_type=Path, file_okay=False),
    help="Audit a dump made by `rlweave replay --to-dump` instead of a broker.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write JSON; - prints it."
)
@click.option("--max-age", type=click.IntRange(min=0), help="Age bound in versions; default: the run's own.")
@broker_options
def audit(
    run: str | None,
    *,
    dump: Path | None,
    json_file: Path | None,
    max_age: int | None,
    kafka: str | None,
    runs_dir: Path,
    state_dir: Path,
) -> int:
    """Check that ids produced = trained + dropped + failed + open; exit with 7 if not.

    Reads the ledger first, then what it speaks of, so a run that goes on balances, too.
    """
    from ops.audit.run import age_bound, audit_source
    from ops.outputs import check_file

    if (run is None) == (dump is None):
        raise click.UsageError("give either --run NAME or --from DIR")
    if json_file is not None:
        check_file(json_file, setting="--json")
    settings = None if run is None else saved_settings(run, runs_dir=runs_dir)
    source = _source(run, dump, kafka=kafka, settings=settings, state_dir=state_dir)
    bound = max_age if max_age is not None else age_bound(settings)
    return _say(audit_source(source, max_age=bound), json_file=json_file)


def _source(
    run: str | None, dump: Path | None, *, kafka: str | None, settings: RunFile | None, state_dir: Path
) -> Source:
    from ops.replay.dump import DumpSource
    from ops.replay.sources import KafkaSource

    if dump is not None:
        return DumpSource(dump)
    return KafkaSource(open_raw_log(kafka, settings=settings, state_dir=state_dir), run=str(run))


def _say(report: AuditReport, *, json_file: Path | None) -> int:
    import orjson

    from ops.audit.show import as_json, lines_of
    from ops.outputs import writing
    from pipeline.exit_codes import ExitCode

    text = orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2).decode()
    if json_file is not None and str(json_file) == "-":
        click.echo(text)
    else:
        for line in lines_of(report):
            click.echo(line)
        if json_file is not None:
            with writing(json_file, setting="--json"):
                json_file.parent.mkdir(parents=True, exist_ok=True)
                json_file.write_text(text + "\n")
    return int(ExitCode.OK if report.balanced else ExitCode.UNACCOUNTED)
