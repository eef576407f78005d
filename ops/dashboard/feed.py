"""A run's picture as named parts of JSON that are sent on when they change.

Role: one thread per run that somebody looks at, however many look; what the server's event streams send.
Data in: a follower's pictures, and the verdict on each. Data out: parts by name with a number that grows.
Invariants: a slow reader gets the newest of each part and nothing in between, so nothing piles up; parts that did not
change are not sent again, and of the timeline of a live run mostly its tail; a broker that is away is said in the part
`trouble`, and tried again.
Failure: none leaves the thread but bugs; named errors of the log become that part.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Protocol

import orjson

from ops.dashboard.decisions import decisions
from ops.dashboard.head import head_of
from ops.dashboard.ledger_index import LedgerIndex
from ops.live.picture import ProcessPicture, RunPicture, SeriesPicture, Verdict
from schemas.errors import RlweaveError

EVERY_S = 1.0  # between two pictures
WHOLE_S = 30.0  # between two sendings of the whole timeline of a live run; between them its tail is sent
SERIES_S = 3.0  # between two sendings of the curves of a live run
LATE_S = 10.0  # by which a process on a busy machine may tell a phase late; else its spans would be missing till then
AGAIN_S = 3.0  # after trouble
READ_RATIO = 8.0  # while the past is read: time for that, in times of what telling the last picture took
_INDEX_S = 0.4  # of indexing between two looks at the run
_STOP_S = 10.0

Parts = dict[str, bytes]


class Follows(Protocol):
    """What is used of `ops.live.follower.Follower`."""

    def turn(self) -> object:
        """Take in what is new, and return soon."""
        ...

    @property
    def share_read(self) -> float:
        """Part of what was there at the start that is taken in."""
        ...

    def picture(self, *, spans_s: float | None = None) -> RunPicture:
        """The run as far as it was taken in; `spans_s`: with the spans of so many last seconds only."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Feed:
    """See the module.

    Args:
        open_follower: begins to follow; called again after trouble.
        judge: the verdict on a picture.
        index: of the run's ledger, filled between two pictures once somebody asks for it.
    """

    def __init__(
        self,
        open_follower: Callable[[], Follows],
        *,
        judge: Callable[[RunPicture], Verdict],
        index: LedgerIndex,
        every_s: float = EVERY_S,
    ) -> None:
        self._open_follower = open_follower
        self._judge = judge
        self._index = index
        self._every_s = every_s
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._wants_index = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard-feed", daemon=True)
        self.used_s = time.monotonic()

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more; waits for the thread."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    @property
    def has_readers(self) -> bool:
        """Whether somebody reads."""
        with self._lock:
            return bool(self._waiting)

    def want_index(self) -> None:
        """Have the ledger indexed from now on."""
        self._wants_index = True

    def newer(self, seen: Mapping[str, int]) -> list[tuple[str, int, bytes]]:
        """(name, number, JSON) of the parts that changed since the numbers in `seen`."""
        self.used_s = time.monotonic()
        with self._lock:
            return [
                (name, number, content) for name, (number, content) in self._parts.items() if number > seen.get(name, 0)
            ]

    @contextmanager
    def reader(self) -> Iterator[asyncio.Event]:
        """For as long as somebody reads: an event of the running loop, set at each change. Clear it before `newer`."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(waiter)
        try:
            yield waiter[1]
        finally:
            with self._lock:
                self._waiting.discard(waiter)
            self.used_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it follows no more."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._keep_following()
        finally:
            if not self._stopping.is_set():  # nobody takes a picture that stands still for a live one
                hint = "its traceback is where `rlweave dashboard` was started; load this page anew to try again"
                self._publish({"trouble": _trouble("a fault of the dashboard itself", hint=hint)})

    def _keep_following(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except RlweaveError as error:
                self._publish({"trouble": _trouble(error.message, hint=error.hint)})
                self._stopping.wait(AGAIN_S)

    def _follow(self) -> None:
        follower = self._open_follower()
        pace, told_s = _Pace(), 0.0
        try:
            while not self._stopping.is_set():
                is_behind = follower.share_read < 1
                until_s = time.monotonic() + (
                    max(self._every_s / 3, told_s * READ_RATIO) if is_behind else self._every_s
                )
                self._look(follower, until_s=until_s)
                began_s = time.monotonic()
                self._tell(follower, pace)
                told_s = time.monotonic() - began_s
                self._fill_index(until_s)
                if follower.share_read >= 1:
                    self._stopping.wait(max(0.0, until_s - time.monotonic()))
        finally:
            follower.close()

    def _tell(self, follower: Follows, pace: _Pace) -> None:
        picture = follower.picture(spans_s=pace.spans_s())
        if not picture.is_live and not pace.is_whole:
            picture = follower.picture()
        self._publish(pace.parts(picture, self._judge(picture)) | {"trouble": _trouble(picture.trouble)})

    def _look(self, follower: Follows, *, until_s: float) -> None:
        """Take in what is new; while the past is read, as much of it as the time allows."""
        follower.turn()
        while follower.share_read < 1 and time.monotonic() < until_s and not self._stopping.is_set():
            follower.turn()

    def _fill_index(self, until_s: float) -> None:
        if not self._wants_index:
            return
        until_s = max(until_s, time.monotonic() + _INDEX_S)
        while not self._stopping.is_set() and self._index.turn() and time.monotonic() < until_s:
            continue

    def _publish(self, parts: Parts) -> None:
        with self._lock:
            changed = [name for name, content in parts.items() if self._parts.get(name, (0, b""))[1] != content]
            for name in changed:
                self._number += 1
                self._parts[name] = (self._number, parts[name])
            waiting = list(self._waiting) if changed else []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def _trouble(message: str, *, hint: str = "") -> bytes:
    return orjson.dumps({"message": message, "hint": hint} if message else None)


class _Pace:
    """Which parts are due: what is large is sent whole now and then, and in between what is new of it."""

    def __init__(self) -> None:
        self._whole_s = self._series_s = -WHOLE_S
        self._whole_ms = 0  # up to which the last whole timeline is whole
        self._is_behind = True  # the past was still being read then
        self.is_whole = True

    def spans_s(self) -> float | None:
        """What to ask the next picture for."""
        self.is_whole = self._is_behind or time.monotonic() - self._whole_s >= WHOLE_S
        return None if self.is_whole else WHOLE_S + LATE_S + 5 * EVERY_S

    def parts(self, picture: RunPicture, verdict: Verdict) -> Parts:
        """Those that are due."""
        now_s = time.monotonic()
        self._is_behind = picture.share_read < 1
        pieces = _pieces(picture, verdict)
        if self.is_whole or not picture.is_live:
            self._whole_s, self._whole_ms = now_s, picture.now_ms - round(LATE_S * 1000)
            pieces["weave"] = _weave(picture.processes, since_ms=0)
        pieces["tail"] = _weave(picture.processes, since_ms=self._whole_ms) if picture.is_live else None
        if not picture.is_live or self._is_behind or now_s - self._series_s >= SERIES_S:
            self._series_s = now_s
            pieces["series"] = {name: _series(series) for name, series in picture.series.items()}
        return {name: orjson.dumps(piece, option=orjson.OPT_NON_STR_KEYS) for name, piece in pieces.items()}


def _pieces(picture: RunPicture, verdict: Verdict) -> dict[str, object]:
    """The picture in pieces that change at different times, without the large ones."""
    return {
        "head": head_of(picture),
        "verdict": verdict,
        "processes": [_process(process) for process in picture.processes],
        "versions": picture.versions,
        "lag": picture.lag,
        "commands": decisions(picture.commands),
        "notices": picture.notices,
        "drops": {"counts": picture.drops, "lost": picture.lost},
    }


def _process(process: ProcessPicture) -> dict[str, object]:
    """One process without what the page does not show."""
    left_out = ("spans", "gauges", "rates")
    return {item.name: getattr(process, item.name) for item in fields(process) if item.name not in left_out}


def _weave(processes: Sequence[ProcessPicture], *, since_ms: int) -> dict[str, object]:
    """Spans that ended after a time, or go on: [number of the phase, begin, end or null] per process."""
    numbers: dict[str, int] = {}
    rows = {
        process.instance: [
            (numbers.setdefault(span.phase, len(numbers)), span.began_ms, span.ended_ms)
            for span in process.spans
            if span.ended_ms is None or span.ended_ms > since_ms
        ]
        for process in processes
    }
    return {"since_ms": since_ms, "phases": list(numbers), "rows": rows}


def _series(series: SeriesPicture) -> dict[str, object]:
    """A series with as many digits as a curve shows."""
    values = [None if value is None else float(f"{value:.5g}") for value in series.values]
    return {"began_ms": series.began_ms, "bin_ms": series.bin_ms, "values": values}
