"""A work queue over a group reader: prompts to rollout producers, samples to reward consumers.

Role: hands out records within a budget, lets them finish in any order, commits what the commit rule allows.
Data in and out: envelopes out of `take`, back in through `done`.
Invariants: never more than `max_in_flight` records are out; a full budget pauses partitions and loses nothing; what is
in flight on a revoked partition is the caller's to finish or drop, and is never committed here. A commit is begun and
heard of at a later `take`, so that nobody's work waits while the group moves partitions.
Failure: errors of the reader. A commit refused because partitions moved on is none: their next holder redoes the work.
A commit that finds no coordinator (a broker restarts) is told and tried again, until that has lasted `COMMIT_LIMIT_S`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from schemas.errors import Fenced, LogError, LogUnavailable
from topics.clock import Clock, Deadline, SystemClock
from topics.log import Envelope, Log, Positions, Reader, ReaderHooks, ReaderSettings, RecreatedTopic, TopicPartition
from topics.tracker import OffsetTracker

COMMIT_RETRY_S = 1.0  # between tries while the broker is away: each may take as long as a session
_TELL_AFTER_S = 2.0  # a rebalance puts commits off, too
COMMIT_LIMIT_S = 300.0  # without any commit: work goes on all the while, and all of it would be done again
_log = logging.getLogger("topics.queue")


class WorkQueue:
    """Work from one reader. Use from one thread, the reader's.

    Args:
        reader: with `assign="group"`; its hooks should call `revoked` (as `WorkQueue.open` arranges), else revocations
            are noticed after each poll and nothing is committed on the way out.
        max_in_flight: most records taken and not done, those of revoked partitions included.
        clock: times the unfinished, and commits that are put off.
        delayed: told, once per outage, why a commit was put off.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        max_in_flight: int,
        clock: Clock | None = None,
        delayed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self._max_in_flight = max_in_flight
        self._clock = clock if clock is not None else SystemClock()
        self._tracker = OffsetTracker()
        self._in_flight: dict[int, Envelope] = {}  # by id(); also those of revoked partitions: they use a slot too
        self._paused: set[TopicPartition] = set()
        self._delayed = delayed
        self._away: Deadline | None = None  # of commits, while they fail
        self._told = False  # that they do
        self._retry_s = 0.0
        self._asked: tuple[Positions, Future[None]] | None = None  # a commit under way

    @classmethod
    def open(
        cls,
        log: Log,
        settings: ReaderSettings,
        *,
        hooks: ReaderHooks,
        max_in_flight: int,
        clock: Clock | None = None,
    ) -> WorkQueue:
        """A queue over a reader of its own, which commits what is done before a partition goes."""
        queue: list[WorkQueue] = []
        recreated = _recreating(queue, hooks.recreated)
        reader = log.reader(
            settings, hooks=replace(hooks, revoked=_revoking(queue, hooks.revoked), recreated=recreated)
        )
        queue.append(cls(reader, max_in_flight=max_in_flight, clock=clock, delayed=hooks.commit_delayed))
        return queue[0]

    @property
    def reader(self) -> Reader:
        """The reader under the queue."""
        return self._reader

    @property
    def num_in_flight(self) -> int:
        """Records taken and not done."""
        return len(self._in_flight)

    @property
    def num_free(self) -> int:
        """Records that may be taken now."""
        return self._max_in_flight - len(self._in_flight)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is out and all that was done, in partitions that are ours, is committed."""
        return not self._in_flight and not self.has_uncommitted

    @property
    def has_uncommitted(self) -> bool:
        """Whether something may be committed that is not known to be."""
        return bool(self._tracker.commit_positions())

    def take(self, max_records: int, *, deadline: Deadline) -> list[Envelope]:
        """Up to `max_records` records, never more than free slots; none when the deadline ends first.

        With no slot free it still polls, with everything paused, so that membership is kept.

        Raises:
            OffsetsLost, LogError: as `Reader.poll`.
        """
        num_wanted = max(0, min(max_records, self.num_free))
        self._pause_or_resume(pause=num_wanted == 0)
        envelopes = self._reader.poll(max(1, num_wanted), deadline=deadline)
        self._drop_strangers()
        envelopes = self._within_budget(envelopes, num_wanted)
        for envelope in envelopes:
            self._tracker.take(envelope, now_s=self._clock.monotonic())
            self._in_flight[id(envelope)] = envelope
        self._tracker.reached(self._reader.positions())
        return envelopes

    def done(self, envelope: Envelope) -> None:
        """The record has an outcome that survives this process; in any order."""
        self._in_flight.pop(id(envelope), None)
        self._tracker.finish(envelope)

    def give_back(self, envelope: Envelope) -> None:
        """The record is not worked on here any more and has no outcome: who holds its partition next gets it.

        Nothing is committed past it, so a process that gives records back is one that leaves.
        """
        self._in_flight.pop(id(envelope), None)

    def is_owned(self, envelope: Envelope) -> bool:
        """Whether the record is unfinished and its partition still ours; if not, somebody else gets it too."""
        return self._tracker.owns(envelope)

    def commit(self) -> None:
        """Commit the lowest unfinished record of each partition, or the position where all is done.

        It goes on while work does; a later call tells how it ended. While no coordinator takes it, it is tried again at
        later calls: no outcome depends on it.

        Raises:
            LogUnavailable: that has lasted for `COMMIT_LIMIT_S`.
            LogError: the broker refused.
        """
        self._hear()
        if self._asked is not None or (self._away is not None and self._clock.monotonic() < self._retry_s):
            return
        positions = self._tracker.commit_positions()
        if not positions:
            self._away = None
            return
        try:
            self._asked = (positions, self._reader.begin_commit(positions))
        except Fenced as error:
            _log.warning("not committed, the work will be redone: %s", error)
        else:
            self._hear()

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are about to go: commit what is done and let go of the rest."""
        self._commit_last(f"{list(partitions)} went")
        self._tracker.forget(partitions)
        self._paused.difference_update(partitions)  # one that comes back in the same poll is not paused

    def recreated(self, topic: RecreatedTopic) -> None:
        """What is out belongs to a topic that is gone: it is finished all the same, and never committed. Where the new
        one begins is, should the partition go before anything is read: with `start="latest"` the next holder would
        begin at its end."""
        place = (topic.topic, topic.partition)
        self._tracker.forget([place])
        self._tracker.reached({place: topic.resumed_at})

    def unfinished_over(self, seconds: float) -> list[Envelope]:
        """Owned records that have been out for longer than `seconds`: the event that names a stuck offset."""
        return self._tracker.unfinished_over(seconds, now_s=self._clock.monotonic())

    def oldest_s(self) -> float:
        """Seconds the longest-running owned record has been out; 0 when there is none."""
        return self._tracker.oldest_s(now_s=self._clock.monotonic())

    def close(self) -> None:
        """Leave the group; what is done is committed first, if the broker takes it."""
        self._commit_last("leaving the group")
        self._reader.close()

    def _hear(self) -> None:
        """How the commit under way ended, if it did."""
        if self._asked is None or not self._asked[1].done():
            return
        (positions, ending), self._asked = self._asked, None
        try:
            ending.result()
        except Fenced as error:
            _log.warning("not committed, the work will be redone: %s", error)
        except LogUnavailable as error:
            self._put_off(error)
        else:
            self._away = None
            self._tracker.committed(positions)

    def _commit_last(self, what: str) -> None:
        """At once. What is under way is no matter: the broker takes it before this one, which holds all of it."""
        self._asked = None
        positions = self._tracker.commit_positions()
        try:
            self._reader.commit(positions)
            self._tracker.committed(positions)
        except LogError as error:
            _log.warning("not committed before %s, the work will be redone: %s", what, error)

    def _put_off(self, error: LogUnavailable) -> None:
        self._retry_s = self._clock.monotonic() + COMMIT_RETRY_S
        if self._away is None:
            self._away, self._told = Deadline.after(COMMIT_LIMIT_S, clock=self._clock), False
        elif not self._told and self._away.remaining_s() <= COMMIT_LIMIT_S - _TELL_AFTER_S:
            self._told = True
            self._delayed(error.message)
        if self._away.expired:
            raise LogUnavailable(
                f"no offsets could be committed for {COMMIT_LIMIT_S:g} s, the limit: {error.message}", hint=error.hint
            ) from error
        _log.warning("offsets were not committed yet: %s", error.message)

    def _pause_or_resume(self, *, pause: bool) -> None:
        assignment = set(self._reader.assignment())
        if pause:
            self._reader.pause(sorted(assignment - self._paused))
            self._paused = assignment
        elif self._paused:
            self._reader.resume(sorted(assignment & self._paused))
            self._paused = set()

    def _within_budget(self, envelopes: list[Envelope], num_wanted: int) -> list[Envelope]:
        """Put back what a partition assigned during a full poll brought along."""
        excess = envelopes[num_wanted:]
        if excess:
            first = {(each.topic, each.partition): each.offset for each in reversed(excess)}
            self._reader.seek(first)
        return envelopes[:num_wanted]

    def _drop_strangers(self) -> None:
        owned = set(self._reader.assignment())
        self._tracker.forget([place for place in self._tracker.partitions() if place not in owned])
        self._paused &= owned


def _revoking(
    queue: list[WorkQueue], told: Callable[[Sequence[TopicPartition]], None]
) -> Callable[[Sequence[TopicPartition]], None]:
    """The revoke hook of a reader whose queue exists a moment later."""

    def revoked(partitions: Sequence[TopicPartition]) -> None:
        for each in queue:
            each.revoked(partitions)
        told(partitions)

    return revoked


def _recreating(queue: list[WorkQueue], told: Callable[[RecreatedTopic], None]) -> Callable[[RecreatedTopic], None]:
    """The same for a topic that was made anew."""

    def recreated(topic: RecreatedTopic) -> None:
        for each in queue:
            each.recreated(topic)
        told(topic)

    return recreated
