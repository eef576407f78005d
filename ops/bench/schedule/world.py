"""What the scripted engines and the scripted learner of one run share: model time, the link, ranks and the step.

Role: the workload's rules on a real clock, for threads of one process.
Data in: the run's progress. Data out: how long things take, in real seconds.
Invariants: one model second is `scale` real seconds; what an engine has made is counted exactly, at its own events.
Failure: none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.schedule.board import Board
from ops.bench.schedule.link import CHECKPOINTS, WEIGHTS, Link
from ops.bench.schedule.workload import Workload
from schemas.records import Version

_LOOK_S = 0.005  # real: between two looks at the link


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Where a run stood when a step was done."""

    step: int
    at_s: float  # model seconds
    used_s: float  # places for sequences in use, times seconds, up to now
    room_s: float  # places, times seconds


@dataclass(kw_only=True)
class _Places:
    """The places of one engine."""

    num_places: int
    num_used: int = 0
    since_s: float = 0.0


class World:
    """See the module. Safe to use from several threads.

    Args:
        workload: what happens.
        board: what the learner says.
        scale: real seconds per model second.
        num_steps: of the run.
        managed: whether traffic classes hold.
    """

    def __init__(self, workload: Workload, *, board: Board, scale: float, num_steps: int, managed: bool = True) -> None:
        self.workload = workload
        self.scale = scale
        self.num_steps = num_steps
        self.board = board
        self.marks: list[Mark] = []
        self.publishes_s: dict[bool, list[float]] = {False: [], True: []}
        self._began_s = board.began_s = time.monotonic()
        self._lock = threading.RLock()
        self._link = Link(bytes_s=workload.link_bytes_s, managed=managed)
        self._through: dict[Version, bool] = {}
        self._places: dict[str, _Places] = {}
        self._used_s = self._room_s = 0.0

    def now_s(self) -> float:
        """Model seconds since the beginning."""
        return (time.monotonic() - self._began_s) / self.scale

    @property
    def tokens_s(self) -> float:
        """Tokens of one sequence per model second, as things stand."""
        return self.workload.tokens_per_s(step=self.board.step, num_steps=self.num_steps)

    def look(self) -> None:
        """Take note of a step that the learner has done since the last look."""
        step = self.board.step
        if step == (self.marks[-1].step if self.marks else 0):
            return
        with self._lock:
            if step % self.workload.checkpoint_every == 0:
                self._link.send(CHECKPOINTS, self.workload.checkpoint_bytes, now_s=self.now_s(), done=lambda _: None)
            self._count_all()
            at_s = (self.board.stepped_s - self._began_s) / self.scale
            self.marks.append(Mark(step=step, at_s=at_s, used_s=self._used_s, room_s=self._room_s))

    def fetch(self, version: Version) -> None:
        """Wait until the link has carried a version to whoever wants it; those who come later wait no longer."""
        with self._lock:
            if version not in self._through:
                self._through[version] = False
                beside = self._link.busy(CHECKPOINTS)
                self._link.send(
                    WEIGHTS, self.workload.publish_bytes, now_s=self.now_s(), done=self._arrived(version, beside=beside)
                )
        while True:
            with self._lock:
                self._link.advance(self.now_s())
                if self._through[version]:
                    return
            time.sleep(_LOOK_S)

    def opened(self, engine: str, *, num_places: int) -> None:
        """An engine is there."""
        with self._lock:
            self._places[engine] = _Places(num_places=num_places, since_s=self.now_s())

    def uses(self, engine: str, num_used: int) -> None:
        """So many of its places are in use from now on."""
        with self._lock:
            self._count(self._places[engine])
            self._places[engine].num_used = num_used

    def closed(self, engine: str) -> None:
        """It is gone."""
        with self._lock:
            if (places := self._places.pop(engine, None)) is not None:
                self._count(places)

    def _arrived(self, version: Version, *, beside: bool) -> Callable[[float], None]:
        def done(took_s: float) -> None:
            self._through[version] = True
            self.publishes_s[beside].append(took_s)

        return done

    def _count_all(self) -> None:
        for places in self._places.values():
            self._count(places)

    def _count(self, places: _Places) -> None:
        now_s = self.now_s()
        spent_s, places.since_s = now_s - places.since_s, now_s
        self._used_s += spent_s * places.num_used
        self._room_s += spent_s * places.num_places
