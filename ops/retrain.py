"""A run trained again from its topics, as it was or with other settings: behind `rlweave retrain`.

Role: settings of the run and changes of them in, a folder with a report (and what was trained) out; the work is the
learner's recorded mode (`consumers.learner.recorded`).
Invariants: the run is only read; the folder is new, and outside the run's own.
Failure: `NotRepeatable`, `SettingsError`; the steps done until then are in the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumers.learner.recorded.history import RecordedHistory, read_history
from consumers.learner.recorded.output import write_output
from consumers.learner.recorded.report import ReportFiles, StepReport, Verdict, say_environment
from consumers.learner.recorded.retrain import Repetition, RetrainSetup
from ops.outputs import check_folder
from ops.run_file import RunFile
from schemas.errors import SettingsError
from topics.clock import Deadline
from topics.log import Log

CONNECT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RetrainRequest:
    """What the command line asked for."""

    into: Path
    until_step: int | None = None
    check_only: bool = False  # stop at the first difference, leave no weights
    model: Path | None = None  # instead of the run's own path
    changes: Mapping[str, object] = field(default_factory=dict)  # settings the run did not have, by name in a run file


def retrain(
    log: Log,
    run_file: RunFile,
    *,
    request: RetrainRequest,
    say: Callable[[str], None],
    each: Callable[[StepReport], None] = lambda _: None,
) -> Verdict:
    """Repeat a run's training.

    Args:
        log: the run's.
        say: told what a person should know before and while it goes on.
        each: told of every step.

    Raises:
        NotRepeatable: records are missing, or the run was trained otherwise.
        SettingsError: the folder or a change is at fault.
        LogUnavailable: no broker answers.
    """
    _check_folder(request.into, run_file=run_file)
    setup = _setup(run_file, model=request.model, changes=request.changes)
    log.connect(deadline=Deadline.after(CONNECT_S))
    history = read_history(log, until_step=request.until_step)
    repetition = Repetition(log, history, setup=setup)
    notes = _notes(repetition, history)
    for line in notes:
        say(line)
    files, verdict, complete = _new_report(request.into), Verdict(changes=repetition.changes), False
    try:
        for report in repetition.run():
            files.add(report)
            verdict.add(report)
            each(report)
            if request.check_only and verdict.first_differing is not None:
                break
        complete = verdict.last_step == history.steps[-1].version.step
    finally:
        settings = {str(lineage): each.model_dump(mode="json") for lineage, each in repetition.arithmetic.items()}
        files.close(verdict, run=log.run, notes=notes, complete=complete, recorded_steps=history.end, settings=settings)
    if not request.check_only:
        write_output(request.into, repetition.trainer, model=setup.model.path)
    return verdict


def _setup(run_file: RunFile, *, model: Path | None, changes: Mapping[str, object]) -> RetrainSetup:
    section = run_file.model if model is None else run_file.model.model_copy(update={"path": model})
    return RetrainSetup(
        settings=run_file.learner,
        model=section,
        weights=run_file.weights,
        seed=run_file.run.seed,
        checkpoints=run_file.run.folder / "checkpoints",
        has_reference=run_file.reference is not None,
        changes=changes,
    )


def _check_folder(into: Path, *, run_file: RunFile) -> None:
    check_folder(into, setting="--into")
    if into.exists() and not (into.is_dir() and not any(into.iterdir())):
        raise SettingsError(f"{into} is there already; nothing was trained", hint="name a folder that is not")
    own = run_file.run.folder.resolve()
    if into.resolve().is_relative_to(own):
        raise SettingsError(
            f"{into} lies in the folder of the run, {own}, which is only read", hint="name a folder elsewhere"
        )


def _new_report(into: Path) -> ReportFiles:
    try:
        into.mkdir(parents=True, exist_ok=True)
        return ReportFiles(into)
    except OSError as error:
        raise SettingsError(
            f"{into} cannot be written: {error.strerror}; nothing was trained", hint="name another folder"
        ) from error


def _notes(repetition: Repetition, history: RecordedHistory) -> list[str]:
    """What may make a difference."""
    notes = [f"{name} = {new} (the run: {old})" for name, (old, new) in repetition.changes.items()]
    notes += say_environment(repetition.environment)
    for lineage, names in repetition.settings_apart.items():
        told = ", ".join(names)
        notes.append(f"lineage {lineage} had other settings than the run's folder now; its own are applied: {told}")
    if repetition.without_facts:
        lineages = ", ".join(map(str, repetition.without_facts))
        notes.append(f"lineage {lineages} kept no facts of its arithmetic: the settings of the run's folder are taken")
    if repetition.cloning_differs:
        notes.append("learner.cloning.source is not what the run was cloned from, by its settings")
    if history.steps[-1].version.step < history.end:
        notes.append(f"the run has {history.end} steps; {history.steps[-1].version.step} of them are repeated")
    return notes
