"""`rlweave retrain`: recorded mode, training from the topics of an old run, as it was or with other settings."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from ops.cli.common import broker_options, known_settings, open_log

if TYPE_CHECKING:
    from consumers.learner.recorded.report import StepReport, Verdict

_SAY_EVERY_S = 5.0


class _Where(TypedDict):
    """The options of `broker_options`."""

    kafka: str | None
    runs_dir: Path
    state_dir: Path


@click.command()
@click.option("--from-topics", "--run", "run", metavar="RUN", required=True, help="Name of the run that was recorded.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of training that the run did not have, as in a run file; lr: the learning rate. May be repeated.",
)
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
    overrides: tuple[str, ...],
    into: Path,
    until_step: int | None,
    check: bool,
    model: Path | None,
    **where: Unpack[_Where],
) -> int:
    """Train again what a run trained: the batches its ledger names, with the rewards it used, without any rollout.

    The run is only read. As it was trained, every version is compared: exit code 0 only when all are the same, bit for
    bit; 9 when one is not. With other settings (--set) there is nothing to compare: 0 when all steps were trained.
    """
    from ops.retrain import RetrainRequest
    from ops.retrain import retrain as repeat
    from ops.run_file import parse_override
    from pipeline.exit_codes import ExitCode
    from schemas.errors import SettingsError

    if overrides and check:
        raise SettingsError("--check compares with the run, --set trains otherwise", hint="leave one of them out")
    settings = known_settings(run, runs_dir=where["runs_dir"])
    log = open_log(where["kafka"], settings=settings, state_dir=where["state_dir"])
    changes = dict(map(parse_override, overrides))
    request = RetrainRequest(into=into, until_step=until_step, check_only=check, model=model, changes=changes)
    verdict = repeat(log, settings, request=request, say=lambda line: click.echo(f"note: {line}"), each=_Progress())
    click.echo(_conclusion(verdict))
    click.echo(f"{into}: steps.jsonl, report.json" + ("" if check else ", state/, model/"))
    return int(ExitCode.OK if verdict.same or verdict.changes else ExitCode.DIVERGED)


class _Progress:
    """A line every few seconds."""

    def __init__(self) -> None:
        from topics.clock import Deadline

        self._next = Deadline.after(_SAY_EVERY_S)

    def __call__(self, report: StepReport) -> None:
        from topics.clock import Deadline

        if self._next.expired:
            self._next = Deadline.after(_SAY_EVERY_S)
            words = {True: "the same", False: "DIFFERS", None: "not compared"}
            loss = "" if report.loss is None else f", loss {report.loss:.4f}"
            click.echo(f"version {report.version}: {words[report.agrees]}{loss}")


def _conclusion(verdict: Verdict) -> str:
    differing = verdict.first_differing
    if verdict.changes:
        return f"{verdict.last_step} steps trained with other settings than the run's: {', '.join(verdict.changes)}"
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
