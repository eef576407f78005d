"""The base every stage stands on: what it is given, and the loop that runs it.

Role: a stage is an object with `start`, `turn` and `stop`; the loop turns it until it is finished or told to stop.
Data in and out: through the `Log` of the context.
Invariants: SIGTERM is seen within one turn, and a turn is bounded (`TURN_S` while it only waits); heartbeats come
from a thread of their own, so a long step does not look like a death, while `turn_age_s` shows it. SIGUSR2 retires a
process: it is to finish what it has and take no more; to a stage that does not know how (`Retiring`) it is a SIGTERM.
Failure: a named error ends the process with its message and exit code; anything else is a bug, logged with its
traceback. This is the one place with a broad handler.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Protocol, runtime_checkable

from pipeline.events import Events
from pipeline.exit_codes import ExitCode, exit_code_for
from pipeline.metrics import Metrics
from pipeline.process_figures import ProcessFigures
from pipeline.settings import RunSettings
from schemas.errors import LogError, RlweaveError
from schemas.records import DeadLetter
from topics.catalog import DEAD_LETTERS
from topics.clock import Clock, Deadline, SystemClock
from topics.log import (
    Log,
    LostOffsets,
    ReaderHooks,
    RecreatedTopic,
    UnreadableBatch,
    Writer,
    WriterSettings,
)

TURN_S = 0.25  # longest wait inside one turn: what a stop request costs at most
CONNECT_S = 10.0  # longest wait for the broker at start
_log = logging.getLogger(__name__)


class Stage(Protocol):
    """One process of the pipeline."""

    @property
    def finished(self) -> bool:
        """True when there is nothing left to do; the process then stops with exit code 0."""
        ...

    def start(self, *, deadline: Deadline) -> None:
        """Claim, recover and check everything needed before the first turn."""
        ...

    def turn(self) -> None:
        """Do a bounded piece of work, or wait at most `TURN_S` for some."""
        ...

    def stop(self, *, deadline: Deadline) -> None:
        """Finish or give back what is in hand, flush, and leave; called once, also after an error in `turn`."""
        ...


@runtime_checkable
class Retiring(Protocol):
    """A stage that looks at `StageContext.retire` itself."""

    retires: bool  # True: once retired it takes no more work, and is `finished` when all it had is acknowledged


class StopSignal:
    """Set by SIGTERM, SIGINT or by code; long waits look at it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def request(self, reason: str) -> None:
        """Ask the stage to stop; the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    @property
    def requested(self) -> bool:
        """True once a stop was asked for."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until a stop is requested, at most `seconds`; True if it was."""
        return self._event.wait(seconds)


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """What a stage is given. Tests build one over the in-memory log."""

    run: RunSettings
    stage: str
    instance: str
    log: Log
    clock: Clock
    metrics: Metrics
    events: Events
    dead_letter_writer: Writer
    stop: StopSignal = field(default_factory=StopSignal)
    retire: StopSignal = field(default_factory=StopSignal)  # set by SIGUSR2

    def hooks(self) -> ReaderHooks:
        """Reader hooks that write dead letters and say what was lost; add `assigned` and `revoked` with `replace`."""
        return ReaderHooks(
            dead_letter=self._dead_letter,
            lost=self._lost,
            unreadable=self._unreadable,
            recreated=self._recreated,
            commit_delayed=self._commit_delayed,
        )

    def _dead_letter(self, letter: DeadLetter) -> None:
        # Flushed at once: the offset may be committed next, and a dead letter is an outcome that must survive.
        self.dead_letter_writer.write(DEAD_LETTERS, letter)
        self.dead_letter_writer.flush(deadline=Deadline.after(CONNECT_S, clock=self.clock))
        self.metrics.count("dead_letters", topic=letter.topic)
        self.events.notice("dead_letter", details={"topic": letter.topic, "error": letter.error})

    def _lost(self, lost: LostOffsets) -> None:
        self.metrics.count("offsets_lost", lost.num_lost, topic=lost.topic)
        self.events.notice(
            "offsets_lost",
            details={"topic": lost.topic, "partition": str(lost.partition)},
            num_lost=lost.num_lost,
            resumed_at=lost.resumed_at,
        )

    def _unreadable(self, batch: UnreadableBatch) -> None:
        self.metrics.count("records_unreadable", batch.num_lost, topic=batch.topic)
        self.events.notice(
            "batch_unreadable",
            details={"topic": batch.topic, "partition": str(batch.partition), "why": batch.why},
            num_lost=batch.num_lost,
            first=batch.first,
            resumed_at=batch.end,
        )

    def _recreated(self, topic: RecreatedTopic) -> None:
        self.metrics.count("topics_recreated", topic=topic.topic)
        self.events.notice(
            "topic_recreated",
            details={
                "topic": topic.topic,
                "partition": str(topic.partition),
                "now": topic.topic_id,
                "lost": f"what the old topic held from offset {topic.held} on; nobody can say how much",
            },
            held=topic.held,
            resumed_at=topic.resumed_at,
        )

    def _commit_delayed(self, why: str) -> None:
        self.events.notice("commit_delayed", details={"why": why})


def new_instance(seat: str) -> str:
    """An id unique per process start: seat (the stage, or a part of it), host, pid and a random part."""
    return f"{seat}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def host_of(instance: str) -> str:
    """The host in an instance id; empty when there is none."""
    return instance.rsplit("-", 2)[0].partition("-")[2]


def make_context(
    log: Log,
    *,
    run: RunSettings,
    stage: str,
    clock: Clock | None = None,
    instance: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> StageContext:
    """Connect to the log and prepare events and metrics; `labels` are carried by all metrics.

    Raises:
        LogUnavailable: no broker answers within `CONNECT_S`.
    """
    chosen = clock if clock is not None else SystemClock()
    name = instance if instance is not None else new_instance(stage)
    log.connect(deadline=Deadline.after(CONNECT_S, clock=chosen))
    metrics = Metrics(run=run.name, stage=stage, instance=name, labels=labels)
    settings = WriterSettings(linger_ms=20.0, buffer_bytes=8 * 1024 * 1024)
    events = Events(
        partial(log.writer, settings), run=run.name, stage=stage, instance=name, clock=chosen, metrics=metrics
    )
    return StageContext(
        run=run,
        stage=stage,
        instance=name,
        log=log,
        clock=chosen,
        metrics=metrics,
        events=events,
        dead_letter_writer=log.writer(WriterSettings(linger_ms=0.0, buffer_bytes=64 * 1024 * 1024)),
    )


def run_stage(
    stage: Stage, context: StageContext, *, on_stopped: Callable[[ExitCode], None] = lambda _: None
) -> ExitCode:
    """Run a stage until it is finished, stopped or broken. Call from the main thread.

    Args:
        on_stopped: called with the exit code once the stage has stopped; its last events are written after that.
    """
    _install_signals(context, retires=isinstance(stage, Retiring) and stage.retires)
    return live(stage, context, on_stopped=on_stopped)


def live(stage: Stage, context: StageContext, *, on_stopped: Callable[[ExitCode], None] = lambda _: None) -> ExitCode:
    """What `run_stage` does, without signals: for threads, which are told through the context."""
    heart = _Heart(context)
    heart.start()
    code = _guarded(lambda: _turns(stage, context, heart=heart))
    deadline = Deadline.after(context.run.stop_grace_s, clock=context.clock)
    stop_code = _guarded(lambda: stage.stop(deadline=deadline))
    heart.stop()
    reason = context.stop.reason or ("retired" if context.retire.requested else "finished")
    context.events.notice("stopped", details={"reason": reason, "code": str(int(code))})
    final = code if code is not ExitCode.OK else stop_code
    on_stopped(final)
    context.events.close(deadline=deadline)
    return final


def _turns(stage: Stage, context: StageContext, *, heart: _Heart) -> None:
    if context.stop.requested or context.retire.requested:
        return
    context.events.enter("starting")
    stage.start(deadline=Deadline.after(context.run.stop_grace_s * 4, clock=context.clock))
    context.events.notice("started")
    while not stage.finished and not context.stop.requested:
        stage.turn()
        heart.turned()


def _guarded(work: _Work) -> ExitCode:
    try:
        work()
    except RlweaveError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        _log.debug("ended by", exc_info=True)
        return exit_code_for(error)
    except Exception:  # noqa: BLE001 - the one boundary
        _log.exception("unexpected error; please report it with this traceback")
        return ExitCode.INTERNAL
    return ExitCode.OK


class _Work(Protocol):
    def __call__(self) -> None: ...


def _install_signals(context: StageContext, *, retires: bool) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        context.stop.request(signal.Signals(number).name)

    def retire(number: int, frame: FrameType | None) -> None:
        context.retire.request(signal.Signals(number).name)
        if not retires:
            stop(number, frame)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGUSR2, retire)


class _Heart:
    """Sends heartbeats from its own thread."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._last_turn_s = context.clock.monotonic()
        self._figures = ProcessFigures(context.metrics, log=context.log)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def turned(self) -> None:
        self._last_turn_s = self._context.clock.monotonic()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=5.0)

    def _beat(self) -> None:
        context = self._context
        while not self._end.wait(context.run.heartbeat_s):
            context.metrics.gauge("turn_age_s", context.clock.monotonic() - self._last_turn_s)
            self._figures.tell()
            try:
                context.events.heartbeat()
            except LogError as error:
                _log.warning("heartbeat failed: %s", error.message)
