"""Starts a whole run on this machine: checks, services, topics, processes.

Order: (1) settings are held against each other; (2) services answer; (3) topics exist as the catalog wants them;
(4) the run's folder, token and settings are written; (5) the supervisor runs to the end.
Failure: nothing is started before (1) to (4) have passed.
"""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click
import orjson

from ops.addresses import resolve
from ops.progress import Progress
from ops.run_checks import check_named, check_run
from ops.run_ends import LogEnds
from ops.run_file import RunFile, save_run_file
from ops.runs import is_alive
from ops.supervisor.supervisor import Supervisor
from ops.wiring import open_log, open_raw_log, programs
from pipeline.stage import CONNECT_S, StopSignal
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import LeaseHeld
from topics.access import ADMIN
from topics.clock import Deadline, SystemClock

SETTINGS_FILE = "settings.json"
PROCESSES_FILE = "processes.json"
BEATS_WATCHED = 2.5  # heartbeats without an event after which nobody is at work


def launch(run_file: RunFile, *, state_dir: Path, quiet: bool = False) -> int:
    """Run every stage of `run_file` until the learner is done or the user stops it; returns the exit code.

    Raises:
        SettingsError: settings contradict each other, or the model is not there.
        ServicesError, LogUnavailable: a server does not answer.
        TopicMismatch: the run's topics were made with other settings.
        LeaseHeld: processes of this run are at work.
    """
    for warning in check_run(run_file):  # (1)
        click.echo(f"warning: {warning}", err=True)
    check_named(run_file)
    run_file = resolve(run_file, state_dir=state_dir, start=True)  # (2)
    log = open_log(run_file, role=ADMIN)
    log.connect(deadline=Deadline.after(CONNECT_S))
    _refuse_second(run_file)
    log.admin().ensure_topics()  # (3)
    folder = run_file.run.folder
    settings_file = folder / SETTINGS_FILE
    save_run_file(run_file, settings_file)  # (4)
    load_or_create_token(folder / "peer-token")
    stop = _stop_on_signals()
    with Progress(log, run_file=run_file, quiet=quiet) as progress:
        supervisor = Supervisor(  # (5)
            programs(run_file, settings_file=settings_file),
            run_file.supervisor,
            clock=SystemClock(),
            stop=stop,
            ends=LogEnds(log, run_file=run_file),
            on_event=progress.say,
            each_turn=progress.turn,
        )
        code = supervisor.run()
        if code == 0:
            progress.say(_how_it_ended(stop, run_file))
    (folder / PROCESSES_FILE).write_bytes(orjson.dumps(supervisor.pids, option=orjson.OPT_INDENT_2))
    return code


def _refuse_second(run_file: RunFile) -> None:
    """A second supervisor's stages would fence those of the first one, and end its run."""
    raw = open_raw_log(run_file, role=ADMIN)
    run = run_file.run
    if is_alive(raw, run.name, counts=raw.partition_counts(), watch_s=BEATS_WATCHED * run.heartbeat_s):
        raise LeaseHeld(
            f"run {run.name!r} has processes at work (its events arrive); nothing was started",
            hint="`rlweave status` names them (a reward started by hand counts); stop them, or choose another run.name",
        )


def _how_it_ended(stop: StopSignal, run_file: RunFile) -> str:
    name = run_file.run.name
    if stop.requested:
        return f"run {name} was stopped; `rlweave runs resume {name}` goes on from its last step"
    return f"run {name} is complete; its folder is {run_file.run.folder}"


def _stop_on_signals() -> StopSignal:
    stop = StopSignal()

    def handle(number: int, _frame: FrameType | None) -> None:
        if not stop.requested:
            click.echo("stopping every stage in order", err=True)
        stop.request(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop
