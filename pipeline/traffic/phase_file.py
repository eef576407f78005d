"""Which phase the learner of this host is in, for senders on the same host: one byte in a shared page of memory.

Role: the edge of a window, told without a message: writing costs the learner nothing, and a sender sees it at once.
Data in: phases of the learner (`classes.PHASES`). Data out: the same in another process.
Invariants: the writer holds a lock of the system on the file, so a phase whose writer has died is not believed for
longer than `_CHECK_S`. A phase that the table lacks is "unknown", and so is all before the first.
Failure: the learner goes on without the file when it cannot be made; a sender then knows no phase.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

from pipeline.traffic.classes import PHASES
from topics.clock import Clock, SystemClock

_NAME = "phase"
_CHECK_S = 0.5
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}


def phase_path(run_folder: Path) -> Path:
    """Where the file is."""
    return run_folder / "traffic" / _NAME


class PhaseWriter:
    """The learner's side. Constructing it makes the file.

    Raises:
        OSError: it cannot be made, or another process of this host writes it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._handle, mmap.PAGESIZE)
            self._page = mmap.mmap(self._handle, mmap.PAGESIZE)
        except OSError:
            os.close(self._handle)
            raise
        self._page[0] = 0

    def enter(self, phase: str) -> str:
        """Be in a phase from now on; gives the one before."""
        before = PHASES[self._page[0]]
        self._page[0] = _NUMBERS.get(phase, 0)
        return before

    def close(self) -> None:
        """No phase any more."""
        self._page[0] = 0
        self._page.close()
        os.close(self._handle)


class PhaseReader:
    """A sender's side."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._page: mmap.mmap | None = None
        self._handle = -1
        self._next_s = self._clock.monotonic()

    def __call__(self) -> str:
        """The phase now; empty: unknown."""
        now_s = self._clock.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _CHECK_S
            self._check()
        return "" if self._page is None else _phase(self._page[0])

    def close(self) -> None:
        """Let go of the file."""
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _check(self) -> None:
        """Open the file when it is there, let go of it when nobody writes it."""
        if self._handle < 0:
            with suppress(OSError):  # not there yet
                self._handle = os.open(self._path, os.O_RDONLY)
        if self._handle < 0:
            return
        if not self._is_written():
            self.close()
        elif self._page is None:
            with suppress(OSError, ValueError):  # being made
                self._page = mmap.mmap(self._handle, mmap.PAGESIZE, access=mmap.ACCESS_READ)

    def _is_written(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._handle, fcntl.LOCK_UN)
        return False


def _phase(number: int) -> str:
    return PHASES[number] if number < len(PHASES) else ""
