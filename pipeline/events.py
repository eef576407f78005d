"""How a stage tells what it is doing: phases, heartbeats and notices on the `events` topic.

Role: the stage clock's sending side.
Invariants: events are dense per instance (`seq`); an event is never worth a stage's life, so a failed delivery is
logged, not raised, and the writer is changed for a new one: the library's may ask the wrong broker for ever after the
topic was made anew (see `topics.kafka.consuming`); phases do not nest: entering one ends the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pipeline.logs import level_of
from pipeline.metrics import Metrics
from schemas.errors import CodecError, DeliveryError, LogError
from schemas.records import StageEvent, Version
from topics.catalog import EVENTS
from topics.clock import Clock, Deadline
from topics.log import Writer

_REOPEN_S = 10.0  # least time between two new writers
_log = logging.getLogger(__name__)


class Events:
    """The events of one process. Safe to use from several threads.

    Args:
        open_writer: opens a writer; called at once, and after a failed delivery.
    """

    def __init__(
        self,
        open_writer: Callable[[], Writer],
        *,
        run: str,
        stage: str,
        instance: str,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._open_writer = open_writer
        self._writer = open_writer()
        self._former: Writer | None = None  # delivers what it still can
        self._reopen_at_s = clock.monotonic()
        self._run = run
        self._stage = stage
        self._instance = instance
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._seq = 0
        self._phase: tuple[str, float] | None = None
        self._told_s = 0.0  # up to when the time in the phase was counted
        self.version: Version | None = None
        self.labels: Mapping[str, str] = {}  # said with every heartbeat
        self.on_phase: Callable[[str], object] = lambda _: None  # told of each phase at once; empty: of none

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the time inside as spent in phase `name`; afterwards the enclosing phase goes on."""
        outer = self._phase[0] if self._phase is not None else None
        self.enter(name)
        try:
            yield
        finally:
            if outer is None:
                self._end_phase()
            else:
                self.enter(outer)

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Mark the time inside as a part of the phase that only this host is told of (`on_phase`), by no event."""
        self.on_phase(name)
        try:
            yield
        finally:
            self.on_phase(self._phase[0] if self._phase is not None else "")

    def enter(self, name: str) -> None:
        """Be in phase `name` from now on; no event when that is so already."""
        if self._phase is not None and self._phase[0] == name:
            return
        self._end_phase()
        self.on_phase(name)
        with self._lock:
            self._told_s = self._clock.monotonic()
            self._phase = (name, self._told_s)
        self._send("phase_began", name)

    def notice(self, name: str, *, details: Mapping[str, str] | None = None, **gauges: float) -> None:
        """Say that something worth knowing happened, with numbers (`gauges`) and words (`details`).

        The detail `text` is a sentence for people: where there is one, it alone is logged.
        """
        said = {} if details is None else {key: _whole(value) for key, value in details.items()}
        text = _whole(said.get("text", " ".join(str(each) for each in (name, said, gauges) if each)))
        _log.log(level_of(name), "%s", text, extra={"event": _whole(name), "details": said, "numbers": gauges})
        self._send("notice", name, gauges=gauges, details=said)

    def heartbeat(self) -> None:
        """Send all gauges and counters, and the phase now."""
        self._count_time()
        phase = self._phase[0] if self._phase is not None else ""
        self._send("heartbeat", "heartbeat", gauges=self._metrics.snapshot(), details={**self.labels, "phase": phase})

    def close(self, *, deadline: Deadline) -> None:
        """End the phase and hand over what is queued."""
        self._end_phase()
        self._let_go()  # first: nothing of it comes after the last event
        try:
            self._writer.close(deadline=deadline)
        except LogError as error:
            _log.warning("last events were not written: %s", error.message)

    def _end_phase(self) -> None:
        if self._phase is None:
            return
        self._count_time()
        name, began_s = self._phase
        self._phase = None
        self.on_phase("")
        spent_s = self._clock.monotonic() - began_s
        self._metrics.observe("phase_s", spent_s, phase=name)
        self._send("phase_ended", name, gauges={"spent_s": spent_s})

    def _count_time(self) -> None:
        """Bring the time in the phase up to now: a wait shows while it lasts. Called by the heartbeat's thread, too."""
        with self._lock:
            if self._phase is not None:
                now_s = self._clock.monotonic()
                self._metrics.count("phase_time_s", max(0.0, now_s - self._told_s), phase=self._phase[0])
                self._told_s = now_s

    def _send(
        self,
        kind: str,
        name: str,
        *,
        gauges: Mapping[str, float] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        with self._lock:
            event = StageEvent(
                run=self._run,
                stage=self._stage,
                instance=self._instance,
                kind=kind,
                name=name,
                seq=self._seq,
                gauges=gauges if gauges is not None else {},
                details=details if details is not None else {},
                version=self.version,
                monotonic_s=self._clock.monotonic(),
                unix_ms=self._clock.unix_ms(),
            )
            self._seq += 1
            try:
                self._write(event)
            except (LogError, CodecError) as error:
                self._metrics.count("events_lost")
                _log.warning("event %s %s was not written: %s", kind, _whole(name), _whole(error.message))

    def _write(self, event: StageEvent) -> None:
        try:
            self._writer.write(EVENTS, event)
        except DeliveryError:
            if self._clock.monotonic() < self._reopen_at_s:
                raise
            self._reopen_at_s = self._clock.monotonic() + _REOPEN_S
            fresh = self._open_writer()
            _log.warning("events that were sent before did not arrive; going on with a new writer")
            self._let_go()
            self._former, self._writer = self._writer, fresh
            self._writer.write(EVENTS, event)

    def _let_go(self) -> None:
        """Of the writer before this one: what it has not delivered by now is lost."""
        former, self._former = self._former, None
        if former is not None:
            with suppress(LogError):
                former.close(deadline=Deadline.after(0, clock=self._clock))


def _whole(text: str) -> str:
    """Text that can be encoded: an error may hold half a character, such as a model makes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
