"""`rlweave up` and `rlweave run STAGE`."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TypedDict, Unpack

import click

STAGES = ("prompts", "rollout", "reward", "reference", "learner", "scheduler", "peer", "evaluator")

config_option = click.option(
    "--config", "-c", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Run file (TOML)."
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting; may be repeated."
)
state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".rlweave"),
    show_default=True,
    help="Folder of the local services.",
)


class _RewardOptions(TypedDict):
    """Options of the stage reward."""

    name: str | None
    plugin: str | None
    shadow: bool
    from_beginning: bool


def _stages(text: str | None) -> tuple[str, ...]:
    """The stages of --only; all without it."""
    if text is None:
        return STAGES
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no stage; there are {', '.join(STAGES)}", param_hint="--only")
    return names


@click.command()
@config_option
@set_option
@state_dir_option
@click.option("--quiet", is_flag=True, help="Print only what went wrong.")
@click.option("--check", "check_only", is_flag=True, help="Check the settings and what they name; start nothing.")
@click.option(
    "--only",
    metavar="STAGE[,STAGE...]",
    help=f"Start these only, the others being elsewhere: {', '.join(STAGES)}.",
)
def up(
    config: Path,
    *,
    overrides: tuple[str, ...],
    state_dir: Path,
    quiet: bool,
    check_only: bool,
    only: str | None,
) -> int:
    """Start every stage of a run on this machine and keep them running until the learner is done.

    With --only a run is spread over machines: each starts its own stages and ends when the run is complete.

    Ends with 0 when the run is complete or was stopped in order, else with the code of the stage that ended it.
    """
    stages = _stages(only)
    _end_in_order_when_asked()
    from ops.launch import launch_all
    from ops.made_with import check_made_with
    from ops.named_checks import check_named, context_warnings
    from ops.phase_book import PhaseProgress
    from ops.phases import check_phases, effective
    from ops.prompt_checks import unknown_text_warnings
    from ops.run_checks import check_run
    from ops.run_file import load_run_file

    run_file = load_run_file(config, overrides=overrides)
    if check_only:
        check_phases(run_file)
        for warning in (*check_run(run_file), *context_warnings(run_file)):
            click.echo(f"warning: {warning}", err=True)
        phases = [effective(run_file, each, progress=PhaseProgress(name=each.name)) for each in run_file.phases]
        for one in (run_file, *phases):
            check_named(one, stages=stages)
        texts = (warning for one in (run_file, *phases) for warning in unknown_text_warnings(one, stages=stages))
        for warning in dict.fromkeys(texts):
            click.echo(f"warning: {warning}", err=True)
        changed = check_made_with(run_file, in_phase=bool(run_file.phases))
        if changed:
            click.echo(f"note: {changed}", err=True)
        click.echo(f"{config}: settings of run {run_file.run.name!r} are fine")
        return 0
    return launch_all(run_file, state_dir=state_dir, quiet=quiet, only=stages)


@click.command()
@click.argument("stage", type=click.Choice(STAGES))
@config_option
@set_option
@state_dir_option
@click.option(
    "--slot", type=click.IntRange(min=0), default=0, show_default=True, help="Which replica, or learner rank."
)
@click.option("--name", help="reward: name of the reward, in the run file or new.")
@click.option("--plugin", help="reward: plug-in of a new reward: a built-in name, module:attr or file.py:attr.")
@click.option("--shadow", is_flag=True, help="reward: score without entering the training signal.")
@click.option("--from-beginning", is_flag=True, help="reward: score, as shadow, all that the log holds, and end.")
def run(
    stage: str,
    *,
    config: Path,
    overrides: tuple[str, ...],
    state_dir: Path,
    slot: int,
    **reward: Unpack[_RewardOptions],
) -> int:
    """Run one stage of a run in this process.

    The run file is the TOML file of the run, or the settings.json in the run's folder. A reward that the run file does
    not name can join a live run: give --name, --plugin and --shadow. With --from-beginning it scores what is in the log
    and ends; several of one name share the work.
    """
    _end_in_order_when_asked()
    from ops.run_stage import StageRequest, run_one

    past = reward["from_beginning"]
    request = StageRequest(
        stage=stage,
        slot=slot,
        reward=reward["name"],
        plugin=reward["plugin"],
        shadow=reward["shadow"] or past,
        past=past,
    )
    return run_one(request, config=config, overrides=overrides, state_dir=state_dir)


def _end_in_order_when_asked() -> None:
    """Until the stage or the supervisor listens by itself nothing is in hand, so SIGTERM is an orderly end at once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
