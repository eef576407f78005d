"""Measures lag beside the scheduler's loop, so that a slow broker never holds up a publish.

Role: one measurement at a time, on a thread that ends with it.
Data in and out: consumer groups and topics in; records behind per (group, topic) out.
Invariants: unknown is None: an error, a partition without a commit, an answer older than allowed. A sum with one
unknown part is unknown.
Failure: none; errors are logged, once per cause, and make the lag unknown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from consumers.scheduler.snapshot import LagKey
from schemas.errors import LogError
from topics.catalog import Topic
from topics.clock import Clock
from topics.log import Admin, PartitionLag
from topics.told import Told

_log = logging.getLogger(__name__)


class LagWatch:
    """Call `refresh` once a turn; `latest` never waits."""

    def __init__(self, admin: Admin, *, clock: Clock, interval_s: float, max_age_s: float) -> None:
        self._admin = admin
        self._clock = clock
        self._interval_s = interval_s
        self._max_age_s = max_age_s
        self._told = Told(_log)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked_s: float | None = None
        self._latest: dict[LagKey, tuple[float, int | None]] = {}

    def refresh(self, wanted: Sequence[tuple[str, Topic]]) -> None:
        """Begin a measurement when one is due and none is under way."""
        now_s = self._clock.monotonic()
        under_way = self._thread is not None and self._thread.is_alive()
        due = self._asked_s is None or now_s >= self._asked_s + self._interval_s
        if not wanted or under_way or not due:
            return
        self._asked_s = now_s
        self._thread = threading.Thread(target=self.measure, args=(tuple(wanted),), name="lag", daemon=True)
        self._thread.start()

    def measure(self, wanted: Sequence[tuple[str, Topic]]) -> None:
        """Ask the broker, now and here."""
        for group, topic in wanted:
            try:
                found: list[PartitionLag] = self._admin.lag(group, [topic])
                self._told.works(group)
            except LogError as error:
                text = f"the lag of {group} on {topic.name} is unknown: {error.message}"
                self._told.warn(group, type(error).__name__, text=text)
                found = []
            with self._lock:
                self._latest[group, topic.name] = (self._clock.monotonic(), total(found))

    def latest(self) -> Mapping[LagKey, int | None]:
        """The last measurement of each group and topic; None where it is unknown or too old."""
        oldest_s = self._clock.monotonic() - self._max_age_s
        with self._lock:
            return {key: lag if at_s >= oldest_s else None for key, (at_s, lag) in self._latest.items()}

    def join(self, timeout_s: float) -> None:
        """Wait for the measurement under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def total(lags: Sequence[PartitionLag]) -> int | None:
    """Records behind over all partitions; None when a part of it, or everything, is unknown or negative."""
    parts = [lag.lag_records for lag in lags]
    if not parts or any(part is None or part < 0 for part in parts):
        return None
    return sum(part for part in parts if part is not None)
