"""The scheduler's commands as a producer sees them.

Role: keeps the newest desired state of each kind for one target.
Data in: commands in the order of the topic; data out: the command of a kind that holds now.
Invariants: a command of a lower epoch than seen is ignored, and so is an older one of the same kind and epoch (promise
13); no time of day is looked at. A desired state holds until another one replaces it, whatever the epoch.
Failure: none.
"""

from __future__ import annotations

from schemas.records import Command
from topics.clock import Clock

EVERYBODY = "all"


class CommandBoard:
    """The commands for one target.

    Args:
        target: "prompts" or "rollout"; commands for "all" count too.
        clock: measures the scheduler's silence.
    """

    def __init__(self, target: str, *, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._epoch = 0
        self._latest: dict[str, Command] = {}
        self._heard_s = clock.monotonic()

    @property
    def epoch(self) -> int:
        """The highest scheduler epoch seen; 0: none."""
        return self._epoch

    @property
    def silence_s(self) -> float:
        """Time since the scheduler was last heard, or since this board began."""
        return self._clock.monotonic() - self._heard_s

    def add(self, command: Command) -> bool:
        """Take a command in; False when it is out of date. Those for others only show that the scheduler lives."""
        if command.epoch < self._epoch:
            return False
        self._epoch = command.epoch
        self._heard_s = self._clock.monotonic()
        if command.target not in (self._target, EVERYBODY):
            return True
        before = self._latest.get(command.kind)
        if before is not None and (command.epoch, command.seq) < (before.epoch, before.seq):
            return False
        self._latest[command.kind] = command
        return True

    def latest(self, kind: str) -> Command | None:
        """The command of this kind that holds now."""
        return self._latest.get(kind)

    @property
    def draining(self) -> bool:
        """Whether nothing new is to be taken on."""
        command = self._latest.get("drain")
        return command is not None and command.drain is True
