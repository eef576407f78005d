"""A run's picture as named parts of JSON that are sent on when they change.

Role: one thread per run that somebody looks at, however many look; what the server's event streams send.
Data in: a follower's pictures, and the verdict on each. Data out: parts by name with a number that grows.
Invariants: a slow reader gets the newest of each part and nothing in between, so nothing piles up; parts that did not
change are not sent again; a broker that is away is said in the part `trouble` and tried again.
Failure: none leaves the thread but bugs; named errors of the log become that part.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from ops.dashboard.ledger_index import LedgerIndex
from ops.live.picture import RunPicture, Verdict
from schemas.errors import RlweaveError

EVERY_S = 1.0  # between two pictures
AGAIN_S = 3.0  # after trouble
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

    def picture(self) -> RunPicture:
        """The run as far as it was taken in."""
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
        """Whether somebody waits for parts."""
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

    async def changed(self, *, limit_s: float, event: asyncio.Event) -> bool:
        """Wait until a part changes; False: none did within the limit.

        Args:
            event: of this reader alone, set when something changed since it was cleared.
        """
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.add(waiter)
        try:
            await asyncio.wait_for(event.wait(), limit_s)
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiting.discard(waiter)
        event.clear()
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except RlweaveError as error:
                self._publish({"trouble": orjson.dumps({"message": error.message, "hint": error.hint})})
                self._stopping.wait(AGAIN_S)

    def _follow(self) -> None:
        follower = self._open_follower()
        try:
            while not self._stopping.is_set():
                until_s = time.monotonic() + self._every_s
                picture = self._look(follower, until_s=until_s)
                self._publish(parts_of(picture, self._judge(picture)) | {"trouble": b"null"})
                self._fill_index(until_s)
                self._stopping.wait(max(0.0, until_s - time.monotonic()) if picture.share_read >= 1 else 0.0)
        finally:
            follower.close()

    def _look(self, follower: Follows, *, until_s: float) -> RunPicture:
        """What is new; while the past is read, as much of it as the time allows."""
        has_more = bool(follower.turn())
        while follower.share_read < 1 and has_more and time.monotonic() < until_s and not self._stopping.is_set():
            has_more = bool(follower.turn())
        return follower.picture()

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


def parts_of(picture: RunPicture, verdict: Verdict) -> Parts:
    """The picture in pieces that change at different times."""
    without = {"spans": None}
    pieces: dict[str, object] = {
        "head": {
            "run": picture.run,
            "now_ms": picture.now_ms,
            "is_live": picture.is_live,
            "share_read": picture.share_read,
            "window_s": picture.window_s,
            "totals": picture.totals,
            "facts": picture.facts,
            "last_step": picture.last_step,
        },
        "verdict": verdict,
        "processes": [_plain(process) | without for process in picture.processes],
        "weave": {process.instance: process.spans for process in picture.processes},
        "versions": picture.versions,
        "flows": picture.flows,
        "lag": picture.lag,
        "commands": picture.commands,
        "notices": picture.notices,
        "drops": {"counts": picture.drops, "lost": picture.lost},
        "series": picture.series,
    }
    return {name: orjson.dumps(piece, option=orjson.OPT_NON_STR_KEYS) for name, piece in pieces.items()}


def _plain(value: object) -> dict[str, object]:
    """A frozen value's own fields, whose parts orjson takes as they are."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
