"""`rlweave chaos`: faults at random moments of a real run, and the proof that nothing was lost or done twice."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

if TYPE_CHECKING:
    from ops.chaos.result import ChaosResult

QUICK_FAULTS = 8


class _Bounds(TypedDict):
    """Where the run lies, and how long things may take."""

    runs_dir: Path
    limit_s: float | None
    total_s: float | None


@click.command()
@click.option("--faults", type=click.IntRange(min=1), help=f"How many; default 20, with --quick {QUICK_FAULTS}.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same faults."
)
@click.option("--brokers", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Kafka brokers.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Learner ranks.")
@click.option("--quick", is_flag=True, help="A small run with the kinds that need little time.")
@click.option("--only", multiple=True, metavar="KIND", help="Draw from these kinds; may be repeated.")
@click.option("--kinds", "list_kinds", is_flag=True, help="List the kinds of faults and what each tries; run nothing.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the result as JSON."
)
@click.option(
    "--dir",
    "runs_dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Parent of the run's folder, chaos-SEED; an earlier one is replaced.",
)
@click.option(
    "--limit", "limit_s", type=click.FloatRange(min=1), help="Seconds until training must go on after a fault."
)
@click.option("--total-limit", "total_s", type=click.FloatRange(min=1), help="Seconds after which no fault is begun.")
def chaos(
    *,
    faults: int | None,
    seed: int,
    brokers: str,
    ranks: int,
    quick: bool,
    only: tuple[str, ...],
    list_kinds: bool,
    json_file: Path | None,
    **bounds: Unpack[_Bounds],
) -> int:
    """Do bad things to a run, one after the other, and prove from its topics that it kept every promise.

    Starts servers and a small run of its own; nothing else is touched. Prints each fault as it happens, then a table
    per kind, and exits with 7 if a promise was broken. The list of faults is in the run's folder; --seed repeats it.
    """
    if list_kinds:
        return _list_kinds()
    from ops.chaos.result import lines_of
    from ops.chaos.run import run_chaos
    from ops.chaos.settings import ChaosSettings, Limits
    from ops.outputs import check_file, check_folder
    from pipeline.exit_codes import ExitCode

    default = Limits()
    limits = Limits(
        recovery_s=default.recovery_s if bounds["limit_s"] is None else bounds["limit_s"],
        total_s=default.total_s if bounds["total_s"] is None else bounds["total_s"],
    )
    settings = ChaosSettings(
        faults=faults if faults is not None else QUICK_FAULTS if quick else 20,
        seed=seed,
        brokers=int(brokers),
        ranks=ranks,
        quick=quick,
        only=only,
        folder=bounds["runs_dir"].absolute() / f"chaos-{seed}",
        limits=limits,
    )
    check_folder(settings.folder, setting="--dir")
    if json_file is not None:
        check_file(json_file, setting="--json")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    result = run_chaos(settings, say=click.echo)
    for line in lines_of(result):
        click.echo(line)
    if json_file is not None:
        _save(result, json_file)
    return int(ExitCode.OK if result.is_good else ExitCode.UNACCOUNTED)


def _save(result: ChaosResult, json_file: Path) -> None:
    import orjson

    from ops.chaos.result import as_json
    from ops.outputs import writing

    with writing(json_file, setting="--json"):
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_bytes(orjson.dumps(as_json(result), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _list_kinds() -> int:
    from ops.chaos.faults import KINDS

    for kind in KINDS:
        click.echo(f"{kind.name:<23} weight {kind.weight:<4g} tries {kind.promise}")
    return 0
