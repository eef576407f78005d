"""Starts a run, or the part of it that belongs to this machine: checks, services, topics, processes.

Order: (1) settings are held against each other; (2) services answer; (3) no other launch holds these stages, the run
was made with these settings, and topics exist as the catalog wants them; (4) settings and token are written into the
run's folder; (5) the supervisor runs to the end.
A part without the learner ends when the ledger is sealed, wherever the learner is. Each part obeys scale commands with
the processes it has, and says so on `events` as stage "supervisor".
A run that was sealed and whose settings ask for nothing more is complete: that is said and nothing is started.
Failure: nothing is started before (1) to (4) have passed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click
import orjson

from ops.addresses import resolve
from ops.holding import hold, hold_off
from ops.made_with import SETTINGS_FILE, check_made_with, keep_model
from ops.metrics_targets import exposed
from ops.named_checks import check_named, context_warnings, launcher_role, teller_role
from ops.outputs import writing
from ops.phase_book import PhaseProgress
from ops.phases import InPhase, Launched, check_phases, effective, run_phases
from ops.progress import Progress
from ops.run_checks import check_run
from ops.run_ends import LogEnds, PartEnd
from ops.run_file import RunFile, save_run_file
from ops.run_record import record_begin, record_end
from ops.runs import stages_at_work
from ops.supervisor.orders import Orders
from ops.supervisor.supervisor import Supervisor
from ops.wiring import SINGLE_STAGES, open_log, open_raw_log, pool_of, programs, scale_limits
from pipeline.exit_codes import ExitCode
from pipeline.stage import CONNECT_S, StageContext, StopSignal, make_context
from pipeline.weights.tokens import run_token
from schemas.errors import LeaseHeld, LogError, SettingsError
from schemas.records import StageEvent
from topics.access import ADMIN, STAGES
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog

PROCESSES_FILE = "processes.json"
BEATS_WATCHED = 2.5  # heartbeats without an event after which nobody is at work


def launch(
    run_file: RunFile,
    *,
    state_dir: Path,
    quiet: bool = False,
    only: Sequence[str] = STAGES,
    phase: InPhase | None = None,
) -> int:
    """Run the stages of `run_file` until the learner is done or the user stops them; returns the exit code.

    Args:
        only: stages that run here; the others are on other machines.
        phase: given: of which phase these settings are.

    Raises:
        SettingsError: settings contradict each other, or the run was made with others.
        SettingsError, PluginError, WeightsError: what settings name is not there.
        ServicesError, LogUnavailable: a server does not answer.
        TopicMismatch: the run's topics were made with other settings.
        LeaseHeld: processes of this run are at work.
    """
    for warning in (*check_run(run_file), *context_warnings(run_file)):  # (1)
        click.echo(f"warning: {warning}", err=True)
    check_named(run_file, stages=only)
    pool_of(run_file, stages=only)
    run_file = resolve(run_file, state_dir=state_dir, start=True)  # (2)
    log = open_log(run_file, role=launcher_role(only))
    log.connect(deadline=Deadline.after(CONNECT_S))
    with hold(run_file.run.folder, stages=only):  # (3)
        changed = check_made_with(run_file, in_phase=phase is not None)
        if changed and not quiet:
            click.echo(f"note: {changed}", err=True)
        _refuse_second(run_file, stages=only)
        log.admin().ensure_topics()
        if _is_complete(LogEnds(log, run_file=run_file), run_file, stages=only):
            return int(ExitCode.OK)
        return _supervise(run_file, log=log, quiet=quiet, only=only, phase=phase)


def launch_all(run_file: RunFile, *, state_dir: Path, quiet: bool = False, only: Sequence[str] = STAGES) -> int:
    """`launch`, phase by phase where the run file has phases.

    Raises:
        SettingsError: also: phases cannot be run by a part of a run.
    """
    if not run_file.phases:
        return launch(run_file, state_dir=state_dir, quiet=quiet, only=only)
    if not set(only) >= set(STAGES):
        raise SettingsError(
            "phases change the settings of every stage, so they are run by one `rlweave up` of all stages",
            hint="leave --only out, or write a run file for each phase",
        )

    check_phases(run_file)
    for phase in run_file.phases:  # what a later one names is missed now, and not hours later
        if phase.settings:
            check_named(effective(run_file, phase, progress=PhaseProgress(name=phase.name)), stages=only)

    def one(chosen: RunFile, phase: InPhase) -> Launched:
        code = launch(chosen, state_dir=state_dir, quiet=quiet, phase=phase)
        resolved = resolve(chosen, state_dir=state_dir, start=False)
        # Not known is not "no seal": that would end the run here, in order, with phases left to do.
        ends = LogEnds(open_log(resolved, role=launcher_role(only)), run_file=resolved)
        seal = ends.known_seal() if code == 0 else None
        return Launched(code=code, seal=seal)

    return run_phases(run_file, launch_one=one, say=click.echo)


def _is_complete(ends: LogEnds, run_file: RunFile, *, stages: Sequence[str]) -> bool:
    """Whether the run was sealed and its present settings ask for nothing more; then that is said, and nothing starts.

    A part without learner or prompts has not the settings that decide it, and ends by itself once the run is sealed.
    """
    if not {"learner", "prompts"} <= set(stages):
        return False
    seal = ends.seal()
    if seal is None or not ends.nothing_is_left(seal):
        return False
    run = run_file.run
    click.echo(
        f"run {run.name} is complete: {seal.reason}; step {seal.step}, {seal.num_groups} groups; nothing was started"
    )
    click.echo("hint: raise run.max_steps, or give more prompts, to go on with it", err=True)
    return True


def _supervise(run_file: RunFile, *, log: KafkaLog, quiet: bool, only: Sequence[str], phase: InPhase | None) -> int:
    folder = run_file.run.folder
    with writing(folder, setting="run.dir"):
        settings_file = _save_settings(run_file, only=only)  # (4)
        keep_model(run_file)
        record_begin(log, run_file, stages=only)
    run_token(folder, token_file=run_file.weights.token_file)
    slots = pool_of(run_file, stages=only)
    stop = _stop_on_signals() if phase is None else phase.stop
    ends = LogEnds(log, run_file=run_file)
    part = PartEnd(ends, stages=only, settings=run_file.supervisor, stop=stop)
    context = _context(run_file, log=log, stop=stop, only=only)
    with (
        exposed(context),
        Progress(
            log, run_file=run_file, quiet=quiet, on_event=_ignored if phase is None else phase.watch.take
        ) as progress,
        Orders(context, log=log, limits=scale_limits(run_file, stages=only)) as orders,
    ):

        def each_turn() -> None:
            progress.turn()
            part.turn()
            orders.turn(supervisor)
            if phase is not None:
                phase.watch.turn()

        supervisor = Supervisor(  # (5)
            [each for each in programs(run_file, settings_file=settings_file) if each.stage in only],
            run_file.supervisor,
            clock=SystemClock(),
            stop=stop,
            ends=ends,
            on_event=progress.say,
            each_turn=each_turn,
            on_exit=progress.ended,
        )
        supervisor.slots = slots
        code = supervisor.run()
        if code == 0 and phase is None:
            progress.say(_how_it_ended(stop, run_file, is_complete=part.is_reached))
    with writing(folder, setting="run.dir"):
        (folder / PROCESSES_FILE).write_bytes(orjson.dumps(supervisor.pids, option=orjson.OPT_INDENT_2))
        with suppress(LogError):  # the broker may be what ended it
            record_end(log, run_file, code=code)
    return code


def _ignored(_: StageEvent) -> None:
    """Nobody wants to hear it."""


def _context(run_file: RunFile, *, log: KafkaLog, stop: StopSignal, only: Sequence[str]) -> StageContext:
    """Of the supervisor."""
    role = teller_role(only)
    telling = log if role == launcher_role(only) else open_log(run_file, role=role)
    return replace(make_context(telling, run=run_file.run, stage="supervisor"), stop=stop)


def _save_settings(run_file: RunFile, *, only: Sequence[str]) -> Path:
    """The file that these stages are started with, again and again. A part of a run has one of its own, so that no
    other part in this folder changes it; `settings.json` is the learner's, where there is one."""
    folder = run_file.run.folder
    if "learner" in only:
        save_run_file(run_file, folder / SETTINGS_FILE)
        return folder / SETTINGS_FILE
    with hold_off(folder, stage="learner") as is_free:  # else a learner's part that begins now would be written over
        if is_free:
            save_run_file(run_file, folder / SETTINGS_FILE)
    own = folder / f"settings-{'-'.join(sorted(only))}.json"
    save_run_file(run_file, own)
    return own


def _refuse_second(run_file: RunFile, *, stages: Sequence[str]) -> None:
    """A second supervisor's stages would fence those of the first one, and end its run.

    A whole run wants to be alone; a part of one only minds stages of which there can be one.
    """
    if not SINGLE_STAGES & set(stages):
        return
    raw = open_raw_log(run_file, role=ADMIN)
    run = run_file.run
    watch_s = BEATS_WATCHED * run.heartbeat_s
    at_work = stages_at_work(raw, run.name, counts=raw.partition_counts(), watch_s=watch_s)
    in_the_way = at_work if set(stages) >= set(STAGES) else at_work & SINGLE_STAGES & set(stages)
    if in_the_way:
        raise LeaseHeld(
            f"run {run.name!r} has processes at work ({', '.join(sorted(in_the_way))}: their events arrive); nothing "
            "was started",
            hint="`rlweave status` names them (a reward started by hand counts); stop them, or choose another run.name",
        )


def _how_it_ended(stop: StopSignal, run_file: RunFile, *, is_complete: bool) -> str:
    name = run_file.run.name
    if stop.requested and not is_complete:
        return f"run {name} was stopped; `rlweave runs resume {name}` goes on from its last step"
    return f"run {name} is complete: `rlweave report --run {name}` sums it up; its folder is {run_file.run.folder}"


def _stop_on_signals() -> StopSignal:
    stop = StopSignal()

    def handle(number: int, _frame: FrameType | None) -> None:
        if not stop.requested:
            click.echo("stopping every stage in order", err=True)
        stop.request(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop
