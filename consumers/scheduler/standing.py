"""The commands in force and the scheduler's epoch, read back from the compacted topic.

Role: what lets a restarted scheduler go on instead of starting over.
Data in and out: Command records in, in order; epoch, published version and rate out.
Invariants: a command holds until one of the same key replaces it, whatever the epoch; a lower epoch than seen changes
nothing.
Failure: none.
"""

from __future__ import annotations

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.signals import Standing
from schemas.records import Command, Version


class StandingCommands:
    """Folds commands; `issue` makes the next ones."""

    def __init__(self, *, run: str) -> None:
        self._run = run
        self._seen_epoch = 0
        self._next_seq = 0
        self._published: Version | None = None
        self._rate: float | None = None
        self._heartbeat_s: float | None = None

    def add(self, command: Command) -> None:
        """A command that is on the topic already."""
        if command.epoch < self._seen_epoch:
            return
        self._seen_epoch = command.epoch
        self._apply(command.target, command.kind, version=command.version, rate=command.rate)

    @property
    def epoch(self) -> int:
        """Ours: one above all that were seen."""
        return self._seen_epoch + 1

    @property
    def standing(self) -> Standing:
        """Input of the decision."""
        return Standing(published=self._published, rate=self._rate, heartbeat_s=self._heartbeat_s)

    def issue(self, draft: CommandDraft, *, unix_ms: int) -> Command:
        """The record of a draft, with the next sequence number."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return Command(
            run=self._run,
            target=draft.target,
            kind=draft.kind,
            epoch=self.epoch,
            seq=seq,
            reason=draft.reason,
            assumed=dict(draft.assumed),
            version=draft.version,
            replicas=draft.replicas,
            rate=draft.rate,
            drain=draft.drain,
            issued_unix_ms=unix_ms,
        )

    def issued(self, draft: CommandDraft, *, now_s: float) -> None:
        """The draft's command is committed."""
        self._apply(draft.target, draft.kind, version=draft.version, rate=draft.rate)
        if draft.kind == "heartbeat":
            self._heartbeat_s = now_s

    def _apply(self, target: str, kind: str, *, version: Version | None, rate: float | None) -> None:
        if (target, kind) == ("rollout", "publish"):
            self._published = version
        elif (target, kind) == ("prompts", "rate"):
            self._rate = rate
