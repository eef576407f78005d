"""The scheduler's scale commands, followed by the supervisor that has the processes.

Role: keeps the newest scale command of each target that runs here, has the executor (`ops.supervisor.executor`) act on
it, and says so.
Data in: `commands`, all of it; data out: notices `scaled` and heartbeats on `events`, as stage "supervisor".
Invariants: a command is a desired state, judged as by every receiver (`producers.commands`); nothing is done before all
that was there at the start has been read; nobody gets more or fewer processes than the limits of the settings allow.
That what is wanted does not fit into the pool, so that a part of it waits until less is wanted, is told.
Failure: none; while the broker is away the number of processes stays what it was, and what could not be read is read
later. A command that asks for no number is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from ops.supervisor.executor import Executor
from pipeline.stage import StageContext
from producers.commands import CommandBoard
from schemas.errors import LogError
from schemas.records import Command
from topics.catalog import COMMANDS
from topics.clock import Deadline
from topics.log import Log, Positions, Reader, ReaderSettings

RETRY_S = 5.0  # between two tries to read
_MAX_RECORDS = 1_000  # of one poll
_POOLED = ("rollout", "learner")  # targets that share run.slots
_LAST_S = 2.0  # at most, for the last events
_log = logging.getLogger(__name__)


class Orders:
    """Follows the commands of one run. A context manager; `turn` is called often and does not wait.

    Args:
        context: writes events.
        log: reads commands.
        limits: fewest and most processes of each target that runs here.
    """

    def __init__(self, context: StageContext, *, log: Log, limits: Mapping[str, tuple[int, int]]) -> None:
        self._context = context
        self._log = log
        self._limits = limits
        self._boards = {target: CommandBoard(target, clock=context.clock) for target in limits}
        self._reader: Reader | None = None
        self._ends: Positions = {}  # to be read before the first deed
        self._retry_at_s = self._beat_at_s = context.clock.monotonic()
        self._wanted: dict[str, int] = {}  # by target, once it was commanded
        self._done: dict[str, tuple[int, int]] = {}  # epoch and number of the command that each target is held to

    def __enter__(self) -> Self:
        events = self._context.events
        events.labels = {"slot": "0"}
        events.notice("started")
        events.enter("supervising")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()
        reason = self._context.stop.reason or ("finished" if kind is None else kind.__name__)
        self._context.events.notice("stopped", details={"reason": reason})
        self._context.events.close(deadline=Deadline.after(_LAST_S, clock=self._context.clock))

    def turn(self, processes: Executor) -> None:
        """Take in what is new, act on it, and say how many processes there are when it is time."""
        now_s = self._context.clock.monotonic()
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._context.run.heartbeat_s
            self._beat(processes)
        if not self._boards or now_s < self._retry_at_s:
            return
        try:
            is_up_to_date = self._follow()
        except LogError as error:
            _log.warning("scale commands cannot be read now: %s", error.message)
            self._retry_at_s = now_s + RETRY_S
            self._let_go()
            return
        if is_up_to_date:
            done = dict(self._done)
            for target, board in self._boards.items():
                self._obey(processes, target, command=board.latest("scale"))
            if self._done != done:
                self._tell_misfit(processes)

    def _follow(self) -> bool:
        """Read on; True once all is known that was there at the start."""
        if self._reader is None:
            settings = ReaderSettings(topics=(COMMANDS,), instance=self._context.instance)
            self._reader = self._log.reader(settings, hooks=self._context.hooks())
            self._ends = self._reader.end_positions()
        for envelope in self._reader.poll(_MAX_RECORDS, deadline=Deadline.after(0, clock=self._context.clock)):
            if isinstance(envelope.record, Command):
                for board in self._boards.values():
                    board.add(envelope.record)
        if self._ends:
            at = self._reader.positions()
            if all(at.get(place, 0) >= end for place, end in self._ends.items()):
                self._ends = {}
        return not self._ends

    def _obey(self, processes: Executor, target: str, *, command: Command | None) -> None:
        if command is None or command.replicas is None or self._done.get(target) == (command.epoch, command.seq):
            return
        fewest, most = self._limits[target]
        replicas = min(max(command.replicas, fewest), most)
        processes.scale(target, replicas)
        self._done[target] = (command.epoch, command.seq)
        details = {"target": target, "asked": str(command.replicas), "replicas": str(replicas)}
        if replicas != command.replicas:
            details["why"] = f"the settings allow {fewest} to {most}"
        self._context.events.notice("scaled", details=details, epoch=command.epoch, seq=command.seq)
        self._wanted[target] = replicas

    def _tell_misfit(self, processes: Executor) -> None:
        there = processes.replicas
        pooled = {name: self._wanted.get(name, there[name].running) for name in _POOLED if name in there}
        if processes.slots is None or sum(pooled.values()) <= processes.slots:
            return
        said = " and ".join(f"{num} of {name}" for name, num in pooled.items())
        text = f"{said} are wanted, and run.slots = {processes.slots}: who has slots keeps them, the rest waits"
        gauges = {"slots": float(processes.slots), "wanted": float(sum(pooled.values()))}
        self._context.events.notice("scale_does_not_fit", details={"text": text}, **gauges)

    def _beat(self, processes: Executor) -> None:
        for target, each in processes.replicas.items():
            self._context.metrics.gauge("replicas", each.running, target=target)
            self._context.metrics.gauge("replicas_retiring", each.retiring, target=target)
        if processes.slots is not None:
            self._context.metrics.gauge("slots", processes.slots)
        self._context.events.heartbeat()

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
