"""The commands in force and the scheduler's epoch, read back from the compacted topic.

Role: what lets a restarted scheduler go on instead of starting over.
Data in and out: Command records in, in order; epoch, published version with its waves, and rate out.
Invariants: a command holds until one of the same key replaces it, whatever the epoch; a lower epoch than seen changes
nothing. Leave that a predecessor gave counts from when it was read.
Failure: `LogError` when no epoch is left, which only a forged command brings about.
"""

from __future__ import annotations

import math
from dataclasses import replace

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.snapshot import Credited, Packing, Publishing, Scaled, Standing
from schemas.errors import LogError
from schemas.records import Command
from schemas.validation import MAX_EPOCH

_PUBLISH, _RATE, _TRAFFIC, _SCALE = ("rollout", "publish"), ("prompts", "rate"), ("host", "traffic"), "scale"
_CREDIT = ("prompts", "credit")
_PACK = ("rollout", "pack")


class StandingCommands:
    """Folds commands; `issue` makes the next ones."""

    def __init__(self, *, run: str) -> None:
        self._run = run
        self._seen_epoch = 0
        self._next_seq = 0
        self._standing = Standing()

    def add(self, command: Command, *, now_s: float) -> None:
        """A command that is on the topic already, read at `now_s`."""
        if command.epoch < self._seen_epoch:
            return
        self._seen_epoch = command.epoch
        if (command.target, command.kind) == _PUBLISH:
            self._standing = replace(self._standing, publish=_publishing(command, now_s=now_s))
        elif (command.target, command.kind) == _RATE:
            self._standing = replace(self._standing, rate=command.rate)
        elif (command.target, command.kind) == _CREDIT:
            self._standing = replace(self._standing, credit=_credited(command.rate, at_s=now_s))
        elif (command.target, command.kind) == _TRAFFIC:
            self._standing = replace(self._standing, traffic=dict(command.rates))
        elif command.kind == _SCALE and command.replicas is not None:
            self._scale(command.target, command.replicas, at_s=now_s)
        elif (command.target, command.kind) == _PACK:
            packing = Packing(givers=command.targets, takers=command.waves, at_s=now_s)
            self._standing = replace(self._standing, pack=packing)

    @property
    def epoch(self) -> int:
        """Ours: one above all that were seen.

        Raises:
            LogError: there is none.
        """
        if self._seen_epoch >= MAX_EPOCH:
            raise LogError(
                f"a command of epoch {self._seen_epoch} is on the commands topic, the highest allowed is {MAX_EPOCH}: "
                "nothing that this scheduler commands could replace it",
                hint="no scheduler comes to such an epoch; find who wrote it and take its record away with a tombstone",
            )
        return self._seen_epoch + 1

    @property
    def standing(self) -> Standing:
        """Input of the decision."""
        return self._standing

    def issue(self, draft: CommandDraft, *, unix_ms: int) -> Command:
        """The record of a draft, with the next sequence number.

        Raises:
            LogError: no epoch is left.
        """
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return Command(
            run=self._run,
            target=draft.target,
            kind=draft.kind,
            epoch=self.epoch,
            seq=seq,
            reason=draft.reason,
            assumed=dict(draft.assumed),
            version=None if draft.publish is None else draft.publish.version,
            replicas=draft.replicas,
            rate=draft.rate,
            drain=draft.drain,
            issued_unix_ms=unix_ms,
            targets=_targets(draft),
            waves=_waves(draft),
            wave=0 if draft.publish is None else draft.publish.wave,
            rates=dict(draft.rates),
        )

    def issued(self, draft: CommandDraft, *, now_s: float) -> None:
        """The draft's command is committed."""
        if (draft.target, draft.kind) == _PUBLISH:
            self._standing = replace(self._standing, publish=draft.publish)
        elif (draft.target, draft.kind) == _RATE:
            self._standing = replace(self._standing, rate=draft.rate)
        elif (draft.target, draft.kind) == _CREDIT:
            self._standing = replace(self._standing, credit=_credited(draft.rate, at_s=now_s))
        elif (draft.target, draft.kind) == _TRAFFIC:
            self._standing = replace(self._standing, traffic=dict(draft.rates))
        elif draft.kind == _SCALE and draft.replicas is not None:
            self._scale(draft.target, draft.replicas, at_s=now_s)
        elif (draft.target, draft.kind) == _PACK:
            self._standing = replace(self._standing, pack=draft.pack)
        elif draft.kind == "heartbeat":
            self._standing = replace(self._standing, heartbeat_s=now_s)

    def _scale(self, target: str, replicas: int, *, at_s: float) -> None:
        last = self._standing.scale.get(target)
        before = None if last is None else last.before if last.replicas == replicas else last.replicas
        scale = {**self._standing.scale, target: Scaled(replicas=replicas, at_s=at_s, before=before)}
        self._standing = replace(self._standing, scale=scale)


def _credited(lag: float | None, *, at_s: float) -> Credited | None:
    """None: there is no lag in it that can be reckoned with."""
    return Credited(lag=int(lag), at_s=at_s) if lag is not None and math.isfinite(lag) and lag >= 0 else None


def _targets(draft: CommandDraft) -> tuple[str, ...]:
    if draft.pack is not None:
        return draft.pack.givers
    return draft.targets if draft.publish is None else draft.publish.targets


def _waves(draft: CommandDraft) -> tuple[tuple[str, ...], ...]:
    if draft.pack is not None:
        return draft.pack.takers
    return () if draft.publish is None else draft.publish.waves


def _publishing(command: Command, *, now_s: float) -> Publishing | None:
    if command.version is None:
        return None
    publish = Publishing(version=command.version, targets=command.targets, waves=command.waves, wave=command.wave)
    return replace(publish, released_s={name: now_s for names in publish.released for name in names})
