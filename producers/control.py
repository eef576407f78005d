"""What a producer must know of the rest of the run: ledger, weights and commands, followed by one reader.

Role: the read side that the prompt producer and the rollout producers share.
Data in: `ledger`, `weights` and `commands` from their beginnings; data out: closed groups and lineages, published
manifests, desired states; records of further topics go to who asked for them.
Invariants: `start` returns when everything that was there has been read, so no decision is taken on half a past;
the reader has no consumer group and commits nothing. A manifest counts once the ledger shows its step as trained in the
surviving history; one that no step stands behind is never followed, and named once.
Failure: `DeadlineExceeded` when catching up takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.history import LedgerView
from pipeline.stage import StageContext
from pipeline.unbacked import UnbackedVersions
from producers.commands import CommandBoard
from schemas.records import Command, LedgerSealed, LineageStarted, Manifest, Outcome, Version
from topics.catalog import COMMANDS, LEDGER, WEIGHTS, Topic
from topics.clock import Deadline
from topics.log import Envelope, Reader, ReaderSettings

_MAX_RECORDS = 5_000  # of one poll
_CATCH_UP_POLL_S = 0.25


class Control:
    """Follows the control topics. Constructing it does no I/O.

    Args:
        context: of the stage.
        target: whose commands count.
    """

    def __init__(self, context: StageContext, *, target: str) -> None:
        self._context = context
        self._further: dict[str, Callable[[Envelope], None]] = {}
        self._topics: tuple[Topic, ...] = (LEDGER, WEIGHTS, COMMANDS)
        self._reader: Reader | None = None
        self._manifests: dict[Version, Manifest] = {}
        self._seen_s: dict[Version, float] = {}  # of those that came since the start
        self._outcomes: list[Outcome] = []  # read, and not given to anybody yet
        self.ledger = LedgerView(context.log.data_partitions)
        self.commands = CommandBoard(target, clock=context.clock)
        self._unbacked = UnbackedVersions(context.clock)

    @property
    def manifests(self) -> Mapping[Version, Manifest]:
        """Published versions that were not pruned, whoever published them."""
        return self._manifests

    def seen_s(self, version: Version) -> float | None:
        """When its manifest was read, on the monotonic clock; None: it was there at the start, or is not any more."""
        return self._seen_s.get(version)

    def newest_surviving(self) -> Manifest | None:
        """The highest published version that the surviving history contains and had come to."""
        alive = [version for version in self._manifests if self.ledger.is_made(version)]
        return self._manifests[max(alive)] if alive else None

    def has_weights(self, lineage: int) -> bool:
        """Whether the learner of this lineage has published something."""
        return any(version.lineage == lineage and self.ledger.is_made(version) for version in self._manifests)

    def follow(self, topic: Topic, take: Callable[[Envelope], None]) -> None:
        """Read another topic too and give its records to `take`. Before the start."""
        self._topics = (*self._topics, topic)
        self._further[topic.name] = take

    def start(self, *, deadline: Deadline) -> list[Outcome]:
        """Read all that is there. Gives the outcomes among it.

        Raises:
            DeadlineExceeded: it took too long.
            LogError: the broker did not tell where the ends are.
        """
        settings = ReaderSettings(topics=self._topics, instance=self._context.instance)
        self._reader = self._context.log.reader(settings, hooks=self._context.hooks())
        outcomes = self.catch_up(deadline=deadline)
        self._seen_s.clear()
        return outcomes

    def catch_up(self, *, deadline: Deadline) -> list[Outcome]:
        """Read all that is there by now. Gives the outcomes among it; after an error, those read are given next time.

        Raises:
            DeadlineExceeded: it took too long.
            LogError: the broker did not tell where the ends are.
        """
        reader = self._reader
        if reader is None:
            return []
        ends = reader.end_positions()
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            deadline.check("the ledger, weights and commands to be read to their ends")
            self._take(reader, wait_s=_CATCH_UP_POLL_S)
        return self._told()

    def poll(self, *, wait_s: float) -> list[Outcome]:
        """Take in what is new, waiting at most `wait_s` for it. Gives the outcomes among it."""
        if self._reader is None:
            return []
        self._take(self._reader, wait_s=wait_s)
        for version in self._unbacked.look(self._manifests, ledger=self.ledger):
            details = {"version": str(version), "trained": str(self.ledger.horizon)}
            self._context.events.notice("manifest_ignored", details=details)
        return self._told()

    def close(self) -> None:
        """Let go of the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _take(self, reader: Reader, *, wait_s: float) -> None:
        deadline = Deadline.after(wait_s, clock=self._context.clock)
        for envelope in reader.poll(_MAX_RECORDS, deadline=deadline):
            self._add(envelope)
            if isinstance(envelope.record, Outcome):
                self._outcomes.append(envelope.record)

    def _told(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _add(self, envelope: Envelope) -> None:
        record = envelope.record
        if envelope.topic in self._further:
            self._further[envelope.topic](envelope)
        elif isinstance(record, Outcome | LineageStarted | LedgerSealed):
            self.ledger.add(envelope.partition, record)
        elif isinstance(record, Manifest):
            self._manifests[record.version] = record
            self._seen_s.setdefault(record.version, self._context.clock.monotonic())
        elif isinstance(record, Command):
            self.commands.add(record)
        elif record is None and envelope.topic == WEIGHTS.name:
            self._prune(envelope.key)

    def _prune(self, key: bytes | None) -> None:
        """A tombstone's key is `lineage.step`; one of another form names no version of ours."""
        text = (key if key is not None else b"").decode("ascii", errors="replace")
        gone = [version for version in self._manifests if str(version) == text]
        for version in gone:
            del self._manifests[version]
            self._seen_s.pop(version, None)
