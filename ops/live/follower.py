"""Follows a run: reads what is new on its topics and folds it.

Role: between a log and the views; reads only, commits nothing, belongs to no consumer group.
Data in: `events`, `ledger`, `weights`. Data out: `RunPicture`.
Invariants: the ledger is read from its beginning, so totals are those of the whole run; of events all are read when
there are at most `look_back_events`, or when the run has ended, else the last ones of them. `turn` returns within its
limit; until all that was there at the start is read, `share_read` says how much is.
Failure: while a broker does not answer, turns read nothing and the picture stays as it was and says so: only where the
broker speaks is silence that of the processes. What does not pass by itself is an error of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from ops.live.fold import RunFold
from ops.live.held import Held
from ops.live.picture import RunFacts, RunPicture
from ops.live.verdict import judge
from ops.run_view import quiet_after_s
from schemas.errors import LogUnavailable
from schemas.records import StageEvent
from topics.catalog import EVENTS, LEDGER, WEIGHTS
from topics.clock import Clock, Deadline, SystemClock
from topics.log import Envelope, Log, Reader, ReaderHooks, ReaderSettings, TopicPartition

ENDED_AFTER_S = 60.0  # a run whose newest event is older has ended
LOOKED_MS, LOOK_MS = 300_000, 5_000  # the past is judged so far back, so often
_TAIL = 64  # events looked at to tell
_TAIL_S = 3.0
_POLL_S = 0.02
_BATCH = 500
_BUFFER_BYTES = 8 * 1024 * 1024  # that a client reads ahead: a view is no stage that must keep up
ASK_S = 3.0  # without a record for so long, the broker is asked whether it is there; less than a process may be silent
_ANSWER_S = 1.0
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)


@dataclass(frozen=True, kw_only=True)
class FollowSettings:
    """How to follow."""

    heartbeat_s: float = 1.0  # between two heartbeats of a process
    look_back_events: int = 20_000  # of a live run with more events, so many of the last ones
    whole: bool = False  # read all events of a live run, too
    facts: RunFacts = field(default_factory=RunFacts)


class Follower:
    """A context manager, or `close` it. Use from one thread.

    Args:
        log: of the run, connected.
        clock: tells what now is; how long reading may take is always this machine's time.
    """

    def __init__(self, log: Log, *, settings: FollowSettings | None = None, clock: Clock | None = None) -> None:
        self._log = log
        self._settings = settings if settings is not None else FollowSettings()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._fold = RunFold(log.run, data_partitions=log.data_partitions, facts=self._settings.facts)
        self._events: Reader | None = None
        self._ledger: Reader | None = None
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}  # of what is there at the start; empty: all of it is read
        self._held = Held()
        self._looked_ms = 0  # at the past
        self._trouble = ""  # why nothing can be read
        self._asked_s = self._sound_s = self._clock.monotonic()  # when the broker was asked; was known to be there
        self._sound_ms = self._clock.unix_ms()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def turn(self, *, limit_s: float = 0.1) -> bool:
        """Read what is new, for at most about `limit_s`; returns whether there was anything.

        Raises:
            LogError: the topics cannot be read, at the first turn or for good.
        """
        if self._events is None or self._ledger is None:
            self._begin()
        deadline = Deadline.after(limit_s)
        num_read = 0
        while True:
            num = self._take(self._events) + self._take(self._ledger)
            num_read += num
            if num == 0 or deadline.expired:
                break
        self._note_progress()
        self._look_at_broker(was_heard=num_read > 0)
        return num_read > 0

    def catch_up(self, *, limit_s: float = 60.0) -> bool:
        """Turn until all that was there at the start is read; False: the limit ended first."""
        deadline = Deadline.after(limit_s)
        self.turn()
        while self._ends and not deadline.expired:
            self.turn()
        return not self._ends

    @property
    def share_read(self) -> float:
        """Part of what was there at the start that is folded in."""
        total = sum(end - self._starts[place] for place, end in self._ends.items())
        if total == 0:
            return 0.0 if self._events is None else 1.0
        at = self._positions()
        done = sum(min(at.get(place, 0), end) - self._starts[place] for place, end in self._ends.items())
        return max(0.0, min(1.0, done / total))

    def picture(self, *, spans_s: float | None = None) -> RunPicture:
        """The run as of now, or of when the broker answered last; `spans_s`: with the spans of so many last seconds
        only."""
        found = self._fold.picture(
            now_ms=self._sound_ms if self._trouble else self._clock.unix_ms(),
            now_s=self._sound_s if self._trouble else self._clock.monotonic(),
            quiet_s=quiet_after_s(self._settings.heartbeat_s),
            share_read=self.share_read,
            spans_s=spans_s,
        )
        found = replace(found, trouble=self._trouble)
        if found.share_read < 1.0:
            return found
        return replace(found, held=self._held.look(judge(found).kind, at_ms=found.now_ms))

    def close(self) -> None:
        """Let go of the connections; what was folded stays."""
        for reader in (self._events, self._ledger):
            if reader is not None:
                reader.close()

    def _begin(self) -> None:
        described = self._log.admin().describe()
        positions = {(EVENTS.name, 0): self._first_event(described.get(EVENTS.name, {}).get(0, (0, 0)))}
        self._events = self._log.reader(
            ReaderSettings(topics=(EVENTS, WEIGHTS), positions=positions, buffer_bytes=_BUFFER_BYTES), hooks=_HOOKS
        )
        self._ledger = self._log.reader(ReaderSettings(topics=(LEDGER,), buffer_bytes=_BUFFER_BYTES), hooks=_HOOKS)
        for topic in (EVENTS, LEDGER, WEIGHTS):
            for partition, (first, end) in described.get(topic.name, {}).items():
                place = (topic.name, partition)
                self._starts[place] = positions.get(place, first)
                self._ends[place] = end

    def _first_event(self, bounds: tuple[int, int]) -> int:
        """Where to begin to read the events."""
        first, end = bounds
        look_back = max(first, end - self._settings.look_back_events)
        if self._settings.whole or look_back == first:
            return first
        return first if self._has_ended(max(first, end - _TAIL), end) else look_back

    def _has_ended(self, begin: int, end: int) -> bool:
        settings = ReaderSettings(topics=(EVENTS,), positions={(EVENTS.name, 0): begin}, buffer_bytes=_BUFFER_BYTES)
        reader = self._log.reader(settings, hooks=_HOOKS)
        deadline, newest_ms = Deadline.after(_TAIL_S), 0
        try:
            while reader.positions().get((EVENTS.name, 0), begin) < end and not deadline.expired:
                for envelope in reader.poll(_TAIL, deadline=Deadline.after(_POLL_S)):
                    newest_ms = max(newest_ms, envelope.unix_ms)
        finally:
            reader.close()
        return newest_ms > 0 and self._clock.unix_ms() - newest_ms > ENDED_AFTER_S * 1000

    def _take(self, reader: Reader | None) -> int:
        if reader is None:
            return 0
        try:
            found = reader.poll(_BATCH, deadline=Deadline.after(_POLL_S))
        except LogUnavailable:
            return 0  # later it may answer again
        for envelope in found:
            self._fold_in(envelope)
        return len(found)

    def _fold_in(self, envelope: Envelope) -> None:
        record = envelope.record
        if isinstance(record, StageEvent):
            self._fold.add_event(record, heard_s=self._heard_s(envelope))
            if self._ends:
                self._look_back()
        elif envelope.topic == LEDGER.name:
            self._fold.add_ledger(record, partition=envelope.partition)
        else:
            self._fold.add_manifest(record, unix_ms=envelope.unix_ms)

    def _look_back(self) -> None:
        """What would have been said of the last minutes, so that one who comes late is told since when it is so."""
        newest_ms, unix_ms = self._fold.newest_ms, self._clock.unix_ms()
        if newest_ms < max(unix_ms - LOOKED_MS, self._looked_ms + LOOK_MS):
            return
        self._looked_ms = newest_ms
        ago_s = max(0.0, (unix_ms - newest_ms) / 1000)
        quiet_s = quiet_after_s(self._settings.heartbeat_s)
        found = self._fold.picture(
            now_ms=newest_ms, now_s=self._clock.monotonic() - ago_s, quiet_s=quiet_s, spans_s=0.0
        )
        self._held.look(judge(found).kind, at_ms=newest_ms)

    def _look_at_broker(self, *, was_heard: bool) -> None:
        """A view that takes the silence of a broker for that of the processes would call a sound run dead."""
        now_s = self._clock.monotonic()
        if not was_heard and now_s < self._asked_s + ASK_S:
            return
        self._asked_s = now_s
        try:
            if not was_heard:
                self._log.connect(deadline=Deadline.after(_ANSWER_S))
        except LogUnavailable as error:
            self._trouble = error.message
            return
        if self._trouble:
            self._trouble = ""
            self._fold.excuse(now_s - self._sound_s)
        self._sound_s, self._sound_ms = now_s, self._clock.unix_ms()

    def _heard_s(self, envelope: Envelope) -> float:
        """Now; of what was there at the start, as long ago as its time says, which informs people only."""
        now_s = self._clock.monotonic()
        if not self._ends:
            return now_s
        return now_s - max(0.0, (self._clock.unix_ms() - envelope.unix_ms) / 1000)

    def _positions(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for reader in (self._events, self._ledger):
            if reader is not None:
                found |= reader.positions()
        return found

    def _note_progress(self) -> None:
        if self._ends:
            at = self._positions()
            if all(at.get(place, 0) >= end for place, end in self._ends.items() if end > self._starts[place]):
                self._ends = {}
