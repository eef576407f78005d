"""Runs one stage in this process: settings, addresses, context, stage, loop.

Invariants: a signal to stop or to retire is heard from here on: at once while the libraries of the stage are imported,
as nothing is in hand, and within a turn afterwards; a process whose supervisor is gone stops.
Failure: named errors go to the command line; a stage's own errors are handled by the run loop.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol, runtime_checkable

from consumers.rewards.settings import RewardSettings
from ops.addresses import resolve
from ops.metrics_targets import expose_metrics, withdraw
from ops.run_file import RunFile, load_run_file, load_saved
from ops.supervisor.processes import PARENT_VARIABLE
from ops.wiring import StageChoice, access_of, build_stage, open_log
from pipeline.collector import calm_collector
from pipeline.credentials import forget_environment, secret_texts
from pipeline.events import Events
from pipeline.exit_codes import ExitCode
from pipeline.logs import set_up_logs
from pipeline.priority import stand_back
from pipeline.stage import Stage, StageContext, StopSignal, make_context, new_instance, run_stage
from schemas.errors import SettingsError
from topics.log import Log

_PARENT_POLL_S = 1.0
_LAST_EVENTS_S = 10.0  # at most, to write the last events


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """What the command line asked for."""

    stage: str
    slot: int
    reward: str | None
    plugin: str | None
    shadow: bool
    past: bool = False  # a reward: score what is in the log, and end


@runtime_checkable
class Reporting(Protocol):
    """A stage that has something to say to a person at its end."""

    def report(self) -> str:
        """A line; empty: nothing."""
        ...


class Build(Protocol):
    """Makes the stage of a process: `ops.wiring.build_stage`, or what a benchmark puts in its place."""

    def __call__(self, choice: StageChoice, run_file: RunFile, /, *, context: StageContext) -> Stage: ...


def run_one(
    request: StageRequest, *, config: Path, overrides: Sequence[str], state_dir: Path, build: Build = build_stage
) -> int:
    """Run the stage to its end, and end the process with its exit code; one that was stopped before it began returns.

    Raises:
        SettingsError: the run file, or the combination of options, is wrong.
        LogUnavailable: no broker answers.
        AccessDenied, RedisRefused: Kafka or Redis does not let us in.
        TopicMismatch: the run's topics were made with other settings.
    """
    give_back = stand_back() if request.past else _nothing  # nobody waits for it
    atexit.register(give_back)
    stop = StopSignal()
    _end_at_once_on_signals(stop)
    _stop_with_supervisor(stop)
    load = load_saved if config.suffix == ".json" else load_run_file
    run_file = load(config, overrides=overrides)
    run_file, reward = _with_reward(run_file, request)
    request = replace(request, reward=reward)
    _set_up_logs(run_file, request)
    run_file = resolve(run_file, state_dir=state_dir, start=False)
    log = open_log(run_file, role=request.stage)
    context = replace(context_of(log, run_file, request=request), stop=stop)
    _set_up_logs(run_file, request, instance=context.instance)
    context.events.labels = labels_of(request, reward=reward)
    if run_file.kafka.security != "plaintext":
        log.check_access(access_of(run_file, request.stage))
    log.admin().ensure_topics()
    if stop.requested:
        return int(ExitCode.OK)
    target = expose_metrics(context)
    calm_collector()
    choice = StageChoice(stage=request.stage, slot=request.slot, reward=reward, past=request.past)
    stage = build(choice, run_file, context=context)
    forget_environment()  # what a stage starts (scorers, environments) has no business with our passwords

    def leave_soon(final: ExitCode) -> None:
        if target is not None:
            withdraw(target)
        _leave_soon(final)

    code = run_stage(stage, context, on_stopped=leave_soon)
    if isinstance(stage, Reporting) and (said := stage.report()):
        sys.stdout.write(f"{said}\n")
    give_back()
    return _leave(code)


def _nothing() -> None:
    return


def _set_up_logs(run_file: RunFile, request: StageRequest, *, instance: str = "") -> None:
    """Rescoring the past is watched by a person, so it says how far it is."""
    settings = run_file.logs
    if request.past:
        logging.getLogger(Events.__module__).addFilter(is_not_the_report)
        if settings.level == "warning":
            settings = settings.model_copy(update={"level": "info"})
    labels = {"run": run_file.run.name, "stage": request.stage, **({"instance": instance} if instance else {})}
    hidden = secret_texts(run_file.kafka, run_file.redis, role=request.stage)
    set_up_logs(settings, labels=labels, hidden=hidden)


def is_not_the_report(record: logging.LogRecord) -> bool:
    """Whether a line is to be logged: what scoring the past came to is printed at its end, so it is not logged, too."""
    return getattr(record, "event", "") != "rescored"


def _leave_soon(code: ExitCode) -> None:
    """Nothing is in hand any more; see `_leave`."""

    def watch() -> None:
        threading.Event().wait(_LAST_EVENTS_S)
        _leave(code)

    threading.Thread(target=watch, name="leave", daemon=True).start()


def _leave(code: ExitCode) -> NoReturn:
    """End the process without the interpreter's own end, which waits for the threads of libraries. A Kafka client waits
    by the time of day (librdkafka 2.16): where the clock was set back, one was seen to wait until it was killed."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))


def context_of(log: Log, run_file: RunFile, *, request: StageRequest) -> StageContext:
    """What the stage is given. One learner rank of several is told apart by its name and by a label of its metrics, a
    reward by a label.

    Raises:
        LogUnavailable: no broker answers.
    """
    if request.reward is not None:
        return make_context(log, run=run_file.run, stage=request.stage, labels={"name": request.reward})
    if request.stage != "learner" or run_file.learner.rank_limits[1] == 1:
        return make_context(log, run=run_file.run, stage=request.stage)
    rank = str(request.slot)
    instance = new_instance(f"{request.stage}.{rank}")
    return make_context(log, run=run_file.run, stage=request.stage, instance=instance, labels={"rank": rank})


def labels_of(request: StageRequest, *, reward: str | None) -> dict[str, str]:
    """What the process says of itself with each heartbeat: which of several it is."""
    slot = {"slot": str(request.slot)}
    return slot if reward is None else {**slot, "reward": reward}


def _with_reward(run_file: RunFile, request: StageRequest) -> tuple[RunFile, str | None]:
    """The run file with the reward of the command line in it, and the name of the reward to run."""
    if request.stage != "reward":
        if request.plugin is not None or request.shadow or request.reward is not None:
            raise SettingsError("--name, --plugin, --shadow and --from-beginning belong to the stage reward")
        return run_file, None
    name = request.reward
    if name is None and len(run_file.rewards) == 1 and request.plugin is None:
        name = next(iter(run_file.rewards))
    if name is None:
        raise SettingsError(
            "which reward is to run is not said", hint=f"give --name; the run file has: {', '.join(run_file.rewards)}"
        )
    if request.plugin is None:
        if name not in run_file.rewards:
            raise SettingsError(
                f"reward {name!r} is not in the run file",
                hint=f"it has: {', '.join(run_file.rewards)}; a new one needs --plugin",
            )
        return run_file, name
    if not request.shadow:
        raise SettingsError(
            f"reward {name!r} joins from the command line, so the learner does not know its weight",
            hint="add --shadow to score beside the training signal, or put it into the run file and start the run anew",
        )
    if name in run_file.rewards:
        raise SettingsError(f"reward {name!r} is in the run file already", hint="choose another --name")
    added = {**run_file.rewards, name: RewardSettings(plugin=request.plugin, weight=0.0)}
    return run_file.model_copy(update={"rewards": added}), name


def _end_at_once_on_signals(stop: StopSignal) -> None:
    """Until the run loop listens by itself."""

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.request(signal.Signals(number).name)  # should an import swallow the exit, the loop will not begin
        sys.exit(int(ExitCode.OK))

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGUSR2, handle)


def _stop_with_supervisor(stop: StopSignal) -> None:
    """Stop when the supervisor that started this process is gone, so that nothing is left behind."""
    text = os.environ.pop(PARENT_VARIABLE, "")  # taken out: what this process starts is not the supervisor's
    if not text.isdigit():
        return

    def watch() -> None:
        while os.getppid() == int(text):
            if stop.wait(_PARENT_POLL_S):
                return
        stop.request("the supervisor is gone")

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
