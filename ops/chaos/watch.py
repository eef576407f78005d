"""What the log says of a run while faults happen to it: steps, signs of life, and losses that were announced.

Role: a thread that follows `ledger` and `events` from their beginnings and notes when each thing arrived.
Data in: the two topics, read past the proxies and clocks of faults. Data out: questions answered under a lock.
Invariants: times are of this process's monotonic clock; a step counts once it has a trained outcome on the ledger; what
was announced is kept for the verdict. A topic that is made anew is read anew.
Failure: none; while the broker is away nothing arrives.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.history import LedgerRecord, LedgerView
from schemas.errors import RlweaveError
from schemas.reasons import Result
from schemas.records import Outcome, StageEvent
from topics.catalog import EVENTS, LEDGER
from topics.clock import Deadline
from topics.log import Envelope, Log, Reader, ReaderHooks, ReaderSettings

_POLL_S = 0.2
_REOPEN_S = 0.5
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
ANNOUNCING = frozenset({"offsets_lost", "topic_recreated"})


@dataclass(kw_only=True)
class Seen:
    """The last word of one process."""

    stage: str
    phase: str = ""
    heard_s: float = 0.0
    turn_age_s: float = 0.0  # of its last heartbeat

    @property
    def is_past_start(self) -> bool:
        """Whether it has come to its first turn."""
        return self.phase not in ("", "starting")


@dataclass(frozen=True, kw_only=True)
class Announced:
    """A loss that a stage told of."""

    name: str  # of the notice
    stage: str
    details: dict[str, str]
    num_lost: int


@dataclass(kw_only=True)
class _Known:
    steps: dict[tuple[int, int], float] = field(default_factory=dict)  # (lineage, step) -> when it was first seen
    last_step: int = 0
    ledger: LedgerView
    processes: dict[int, Seen] = field(default_factory=dict)  # by pid
    announced: list[Announced] = field(default_factory=list)
    notices: Counter[str] = field(default_factory=Counter)


class Watch:
    """Follows one run.

    Args:
        open_log: gives a log of the run, over the brokers themselves.
        data_partitions: of the run.
    """

    def __init__(self, open_log: Callable[[], Log], *, data_partitions: int) -> None:
        self._open_log = open_log
        self._known = _Known(ledger=LedgerView(data_partitions))
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(topic,), name=f"watch-{topic.name}", daemon=True)
            for topic in (LEDGER, EVENTS)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop following."""
        self._end.set()
        for thread in self._threads:
            thread.join(timeout=10.0)

    def num_steps(self, *, since_s: float = 0.0) -> int:
        """Steps that were trained, since a time."""
        return len(self.step_times(since_s=since_s))

    def step_times(self, *, since_s: float = 0.0) -> list[float]:
        """When each step was seen, in order."""
        with self._lock:
            return sorted(at_s for at_s in self._known.steps.values() if at_s >= since_s)

    @property
    def last_step(self) -> int:
        """Number of the step that was trained last."""
        with self._lock:
            return self._known.last_step

    def seen(self, pid: int | None) -> Seen:
        """What a process said last."""
        with self._lock:
            return self._known.processes.get(-1 if pid is None else pid, Seen(stage=""))

    def is_closed(self, group: int) -> bool:
        """Whether a group has an outcome in the surviving history."""
        with self._lock:
            return self._known.ledger.is_closed(group)

    def announced(self) -> list[Announced]:
        """Losses that were told of so far."""
        with self._lock:
            return list(self._known.announced)

    def notices(self) -> Counter[str]:
        """How often each notice came."""
        with self._lock:
            return Counter(self._known.notices)

    def add(self, envelope: Envelope, *, now_s: float) -> None:
        """Take one record in."""
        record = envelope.record
        with self._lock:
            if isinstance(record, LedgerRecord):
                self._known.ledger.add(envelope.partition, record)
            if isinstance(record, Outcome) and record.result == Result.TRAINED:
                self._known.steps.setdefault((record.lineage, record.step), now_s)
                self._known.last_step = record.step
            elif isinstance(record, StageEvent):
                self._add_event(record, now_s=now_s)

    def _add_event(self, event: StageEvent, *, now_s: float) -> None:
        known = self._known
        seen = known.processes.setdefault(pid_of(event.instance), Seen(stage=event.stage))
        seen.heard_s = now_s
        if event.kind == "phase_began":
            seen.phase = event.name
        elif event.kind == "heartbeat":
            seen.phase = event.details.get("phase", seen.phase)
            seen.turn_age_s = event.gauges.get("turn_age_s", 0.0)
        elif event.kind == "notice":
            known.notices[event.name] += 1
            if event.name in ANNOUNCING:
                known.announced.append(
                    Announced(
                        name=event.name,
                        stage=event.stage,
                        details=dict(event.details),
                        num_lost=round(event.gauges.get("num_lost", 0.0)),
                    )
                )

    def _follow(self, topic: object) -> None:
        reader: Reader | None = None
        while not self._end.is_set():
            try:
                if reader is None:
                    wanted = LEDGER if topic is LEDGER else EVENTS
                    reader = self._open_log().reader(ReaderSettings(topics=(wanted,)), hooks=_HOOKS)
                for envelope in reader.poll(2000, deadline=Deadline.after(_POLL_S)):
                    self.add(envelope, now_s=time.monotonic())
            except RlweaveError:
                _close(reader)
                reader = None
                self._end.wait(_REOPEN_S)
        _close(reader)


def pid_of(instance: str) -> int:
    """The process behind an instance (`stage-host-pid-random`); -1 when it names none."""
    parts = instance.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else -1


def _close(reader: Reader | None) -> None:
    if reader is not None:
        try:
            reader.close()
        except RlweaveError:
            return
