"""A run in phases: cloning, RL, RL with another reward, one after the other, unattended.

Role: behind `rlweave up` and `runs resume` when the run file has `[[phases]]`.
Order, per phase: (1) the run file with what the phase sets; (2) the stages run until the learner has done the phase's
steps, which seals the ledger, or until another rule is met; (3) then they are stopped in order and run once more with
the step they came to as the last one, so that every open group gets its outcome and the ledger is sealed; (4) the end
is noted in `phases.json`, and the next phase begins from there.
Data in: the run file, `events`, the ledger's seal. Data out: `phases.json`; settings of the stages.
Invariants: no group is open at a boundary, and the learner of a phase drops what the new lineage reopens of the one
before (`learner.first_group`), so nothing made for one phase is trained in the next. What was trained is in
the ledger and the checkpoints as in any run: a phase boundary is an end and a new start of the same run, so a death at
any moment is one, too. A phase that is noted as over is never run again.
Failure: the exit code of the launch that failed; started again, the run goes on in the phase it was in.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import cast

import click

from ops.made_with import check_made_with, check_phase
from ops.phase_book import PhaseBook, PhaseProgress
from ops.phase_settings import PhaseSettings, StopRule, merged
from ops.run_checks import check_run
from ops.run_file import RunFile, Toml, parse_run_file, save_run_file
from pipeline.stage import StopSignal
from schemas.errors import SettingsError
from schemas.records import LedgerSealed, StageEvent

BASE_FILE = "phases-settings.json"
_SAVE_EVERY_S = 5.0
_log = logging.getLogger(__name__)


class PhaseWatch:
    """Looks at a running phase, and asks for its end when a rule is met.

    Args:
        rule: None: the end was asked for already.
        stop: is asked.
        now_s: monotonic seconds.
    """

    def __init__(
        self,
        book: PhaseBook,
        *,
        rule: StopRule | None,
        progress: PhaseProgress,
        stop: StopSignal,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._rule = rule
        self._progress = progress
        self._stop = stop
        self._now_s = now_s
        self._looked_s = self._saved_s = now_s()
        self.met = ""

    def take(self, event: StageEvent) -> None:
        """An event of the run."""
        if self._rule is not None:
            self._progress.add(event, keep_rewards=self._rule.reward_steps)

    def turn(self) -> None:
        """Call often."""
        now_s = self._now_s()
        self._progress.time_s += max(0.0, now_s - self._looked_s)
        self._looked_s = now_s
        if self._rule is not None and not self.met and not self._stop.requested:
            self.met = self._progress.met(self._rule)
            if self.met:
                self._save()
                self._stop.request(f"phase {self._progress.name}: {self.met}")
        if now_s >= self._saved_s + _SAVE_EVERY_S:
            self._saved_s = now_s
            self._save()

    def _save(self) -> None:
        """What is noted while a phase goes on only matters to a run that is killed: a full disk is no reason to end
        stages that train."""
        try:
            self._book.save()
        except SettingsError as error:
            _log.warning("how far phase %s is was not noted: %s", self._progress.name, error.message)


class Stop(StopSignal):
    """A stop that a phase may ask for and the next one does not see; one that a person asked for stays."""

    def __init__(self) -> None:
        super().__init__()
        self.signalled = False

    def listen(self) -> None:
        """Hear SIGTERM and SIGINT, from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def renew(self) -> None:
        """Forget what a phase asked for."""
        if not self.signalled:
            self._event.clear()
            self.reason = ""

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if not self.signalled:
            click.echo("stopping every stage in order", err=True)
        self.signalled = True
        self.request(signal.Signals(number).name)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How one launch ended."""

    code: int
    seal: LedgerSealed | None  # the ledger's end; None: it is not sealed


@dataclass(frozen=True, kw_only=True)
class InPhase:
    """What a launch is told that is one phase of a run."""

    stop: Stop  # hears the user's signals already
    watch: PhaseWatch


LaunchOne = Callable[[RunFile, InPhase], Launched]


def run_phases(run_file: RunFile, *, launch_one: LaunchOne, say: Callable[[str], None]) -> int:
    """Run all phases that are not over; returns the exit code.

    Args:
        launch_one: runs the stages with these settings until they end or a stop is asked for.

    Raises:
        SettingsError: a phase's settings are wrong, or the run was made with others, before anything is started.
    """
    check_phases(run_file)
    folder = run_file.run.folder
    book = PhaseBook(folder, run_file.phases)
    first = book.current
    if first is None:
        name, num = run_file.run.name, len(run_file.phases)
        say(f"run {name} is complete: all of its {num} phases are over; nothing was started")
        click.echo("hint: add a phase at the end of the run file to go on with it", err=True)
        return 0
    check_made_with(effective(run_file, first[0], progress=first[1]), in_phase=True)  # before anything is written
    save_run_file(run_file, folder / BASE_FILE)
    stop = Stop()
    stop.listen()
    while not stop.signalled and (current := book.current) is not None:
        phase, progress = current
        book.save()
        stop.renew()
        is_closing = progress.closing_at is not None
        if not is_closing:
            say(f"phase {phase.name}: from step {progress.first_step}, {_told(phase.until)}")
        watch = PhaseWatch(book, rule=None if is_closing else phase.until, progress=progress, stop=stop)
        chosen = effective(run_file, phase, progress=progress)
        ended = launch_one(chosen, InPhase(stop=stop, watch=watch))  # (1) to (3)
        if ended.code == 0:
            _note_end(progress, ended, met=watch.met, is_stopped=stop.signalled)
        book.save()  # (4)
        if ended.code != 0:
            return ended.code
        if progress.last_step is not None:
            say(f"phase {phase.name}: over at step {progress.last_step}: {progress.reason}")
        elif is_closing or progress.closing_at is None:
            break  # somebody stopped it
    return 0


def _note_end(progress: PhaseProgress, ended: Launched, *, met: str, is_stopped: bool) -> None:
    """What a launch that ended in order means for its phase."""
    seal = ended.seal
    if seal is not None and seal.lineage > progress.sealed_lineage:
        _sealed(progress, seal)
        progress.reason = progress.reason if progress.reason else seal.reason
    elif met:
        progress.closing_at, progress.reason = _last_step(progress), met
    elif seal is not None and not is_stopped:  # nothing was started: there are no more prompts
        _sealed(progress, seal)
        progress.reason = "nothing was left to do"


def _sealed(progress: PhaseProgress, seal: LedgerSealed) -> None:
    progress.last_step, progress.last_lineage, progress.num_groups = seal.step, seal.lineage, seal.num_groups


def check_phases(run_file: RunFile) -> None:
    """See that every phase's settings work, before the first one begins.

    Raises:
        SettingsError: with the phase that does not.
    """
    names = [phase.name for phase in run_file.phases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"phases: the name {twice[0]!r} is there more than once")
    for number, phase in enumerate(run_file.phases):
        if phase.until.steps == 0 and number > 0:
            raise SettingsError(
                f"phase {phase.name}: until.steps = 0 trains nothing; only the first phase may clone alone",
                hint="behaviour cloning comes before the first version of a run ([learner.cloning])",
            )
        chosen = effective(run_file, phase, progress=PhaseProgress(name=phase.name))
        check_phase(run_file, chosen, name=phase.name)
        try:
            check_run(chosen)
        except SettingsError as error:
            raise SettingsError(f"phase {phase.name}: {error.message}", hint=error.hint) from error


def effective(run_file: RunFile, phase: PhaseSettings, *, progress: PhaseProgress) -> RunFile:
    """The run file that a phase is run with.

    Raises:
        SettingsError: what the phase sets is wrong.
    """
    values = run_file.model_dump(mode="json", exclude={"phases"})
    wanted = cast("dict[str, Toml]", merged(values, phase.settings))
    chosen = parse_run_file(wanted, origin=f"phase {phase.name}")
    steps = phase.until.steps
    last = chosen.run.max_steps if steps is None else progress.first_step + steps
    if progress.closing_at is not None:
        last = min(last, progress.closing_at)
    learner = chosen.learner.model_copy(update={"first_group": progress.first_group})
    return chosen.model_copy(update={"run": chosen.run.model_copy(update={"max_steps": last}), "learner": learner})


def _last_step(progress: PhaseProgress) -> int:
    """The step that a phase which is being ended came to, as far as it was heard; the learner's checkpoint may have
    one more, which then is the last."""
    return max((int(step) for step in progress.tokens), default=progress.first_step)


def _told(rule: StopRule) -> str:
    words = {
        "steps": None if rule.steps is None else f"{rule.steps} steps",
        "reward": None if rule.reward is None else f"a reward of {rule.reward:g} over {rule.reward_steps} steps",
        "tokens": None if rule.tokens is None else f"{rule.tokens} tokens",
        "time": None if rule.time_s is None else f"{rule.time_s:g} s",
    }
    return "until " + " or ".join(word for word in words.values() if word is not None)
