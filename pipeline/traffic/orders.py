"""The scheduler's word on traffic, for the sender of a host.

Role: keeps the newest command of kind `traffic` and gives its permission to the sender.
Data in: `commands`, all of it. Data out: permissions; a notice for each.
Invariants: a command is a desired state; one of a lower epoch than seen, or an older one, changes nothing. What cannot
be read leaves the permission that is in force, and so does a command that makes no sense, which is told once. No local
decision waits for any of this.
Failure: none; while the broker is away the permission in force stays.
"""

from __future__ import annotations

import logging

from pipeline.stage import StageContext
from pipeline.traffic.permit import permit_of
from pipeline.traffic.sender import HostSender
from schemas.errors import LogError, SettingsError
from schemas.records import Command
from topics.catalog import COMMANDS
from topics.clock import Deadline
from topics.log import Reader, ReaderSettings

TARGETS = ("host", "all")
KIND = "traffic"
_RETRY_S = 5.0
_MAX_RECORDS = 1_000
_log = logging.getLogger(__name__)


class TrafficOrders:
    """See the module. `turn` does not wait."""

    def __init__(self, context: StageContext, sender: HostSender) -> None:
        self._context = context
        self._sender = sender
        self._reader: Reader | None = None
        self._epoch = 0
        self._newest = (0, -1)  # epoch and number of the command in force
        self._retry_s = float("-inf")

    def turn(self) -> None:
        """Take in what is new."""
        now_s = self._context.clock.monotonic()
        if now_s < self._retry_s:
            return
        try:
            newest = self._read()
        except LogError as error:
            _log.warning("traffic commands cannot be read now: %s", error.message)
            self._retry_s = now_s + _RETRY_S
            self.close()
            return
        if newest is not None:
            self._obey(newest)

    def close(self) -> None:
        """Let go of the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self) -> Command | None:
        if self._reader is None:
            settings = ReaderSettings(topics=(COMMANDS,), instance=self._context.instance)
            self._reader = self._context.log.reader(settings, hooks=self._context.hooks())
        found = None
        for envelope in self._reader.poll(_MAX_RECORDS, deadline=Deadline.after(0, clock=self._context.clock)):
            command = envelope.record
            if isinstance(command, Command) and self._is_newest(command):
                found = command
        return found

    def _is_newest(self, command: Command) -> bool:
        if command.epoch < self._epoch:
            return False
        self._epoch = command.epoch
        if command.kind != KIND or command.target not in TARGETS or (command.epoch, command.seq) <= self._newest:
            return False
        self._newest = (command.epoch, command.seq)
        return True

    def _obey(self, command: Command) -> None:
        events = self._context.events
        try:
            permit = permit_of(command.rates)
        except SettingsError as error:
            details = {"why": f"{error.message}; what was in force stays", "reason": command.reason}
            events.notice("traffic_refused", details=details, epoch=command.epoch, seq=command.seq)
            return
        self._sender.replace(permit)
        rates = ", ".join(f"{key} {rate:g}" for key, rate in sorted(command.rates.items())) or "no limits"
        details = {"rates": rates, "reason": command.reason}
        events.notice("traffic_permitted", details=details, epoch=command.epoch, seq=command.seq)
