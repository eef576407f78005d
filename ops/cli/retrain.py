"""`rlweave retrain`: recorded mode, the same training from the topics of an old run."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.common import broker_options, open_log, run_option, saved_settings

if TYPE_CHECKING:
    from consumers.learner.recorded.report import StepReport, Verdict

_SAY_EVERY_S = 5.0


@click.command()
@run_option
@click.option(
    "--into",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="New folder for the report and what was trained.",
)
@click.option("--until-step", type=click.IntRange(min=1), help="Last step to repeat; default: the last one there is.")
@click.option("--check", is_flag=True, help="Only compare: stop at the first difference and leave no weights.")
@click.option(
    "--model",
    type=click.Path(path_type=Path, file_okay=False),
    help="Model directory that the run began with, if it is elsewhere now.",
)
@broker_options
def retrain(
    run: str,
    *,
    into: Path,
    until_step: int | None,
    check: bool,
    model: Path | None,
    kafka: str | None,
    runs_dir: Path,
    state_dir: Path,
) -> int:
    """Train again what a run trained: the batches its ledger names, with the rewards it used; compare every version.

    The run is only read. Exit code 0 only when all versions are the same, bit for bit; 9 when one is not.
    """
    from ops.retrain import RetrainRequest
    from ops.retrain import retrain as repeat
    from pipeline.exit_codes import ExitCode
    from schemas.errors import SettingsError

    settings = saved_settings(run, runs_dir=runs_dir)
    if settings is None:
        raise SettingsError(
            f"{runs_dir / run} has no saved settings, so the model directory is not known",
            hint="run this where the run was started, or give --dir",
        )
    log = open_log(kafka, settings=settings, state_dir=state_dir)
    request = RetrainRequest(into=into, until_step=until_step, check_only=check, model=model)
    verdict = repeat(log, settings, request=request, say=lambda line: click.echo(f"note: {line}"), each=_Progress())
    click.echo(_conclusion(verdict))
    click.echo(f"{into}: steps.jsonl, report.json" + ("" if check else ", state/, model/"))
    return int(ExitCode.OK if verdict.same else ExitCode.DIVERGED)


class _Progress:
    """A line every few seconds."""

    def __init__(self) -> None:
        from topics.clock import Deadline

        self._next = Deadline.after(_SAY_EVERY_S)

    def __call__(self, report: StepReport) -> None:
        from topics.clock import Deadline

        if self._next.expired:
            self._next = Deadline.after(_SAY_EVERY_S)
            words = {True: "the same", False: "DIFFERS", None: "not recorded"}
            click.echo(f"version {report.version}: {words[report.agrees]}")


def _conclusion(verdict: Verdict) -> str:
    differing = verdict.first_differing
    if differing is not None:
        first = next(each for each in differing.compared if not each.agrees)
        since = (
            "none was the same before" if verdict.last_agreeing is None else f"the same up to {verdict.last_agreeing}"
        )
        return (
            f"step {differing.version.step} is the first that differs ({since}): version {first.version} is "
            f"{first.recorded} in {first.place}, it came out as {first.computed}"
        )
    if not verdict.last_was_compared:
        return f"nothing differs, but nothing is recorded of step {verdict.last_step}, so its weights are not proven"
    return f"all the same, bit for bit: {verdict.num_compared} versions compared, up to step {verdict.last_step}"
