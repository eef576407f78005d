"""One `rlweave up` per stage and run folder.

Role: two launches in the same moment see nothing of each other's processes yet; the second one must not write over the
settings that the first one's processes are started with.
Data out: `locks/<stage>.lock` in the run's folder, each with the pid of its holder.
Invariants: of two that begin together exactly one goes on; the kernel drops a lock with its process, however that ends
(flock(2)). Other machines have folders of their own: between them events, leases and fences decide.
Failure: `LeaseHeld` naming the holder; `SettingsError` where the folder cannot be written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from ops.outputs import writing
from schemas.errors import LeaseHeld
from topics.clock import Deadline

_FOLDER = "locks"
_TRY_S = 0.2


@contextmanager
def hold(folder: Path, *, stages: Sequence[str]) -> Iterator[None]:
    """Hold these stages of the run in `folder` for as long as the context lasts.

    Raises:
        LeaseHeld: another process holds one of them.
        SettingsError: the folder cannot be written.
    """
    with ExitStack() as held:
        for stage in sorted(stages):  # in one order: of two, the first to get the first lock gets all that both want
            held.enter_context(_hold_one(_path(folder, stage), run=folder.name, stage=stage))
        yield


def is_held(folder: Path, stage: str) -> bool:
    """Whether some process holds the stage just now."""
    path = _path(folder, stage)
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def _hold_one(path: Path, *, run: str, stage: str) -> Iterator[None]:
    with writing(path.parent, setting="run.dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+", encoding="utf-8")
    with opened as file:
        if not _lock(file):
            raise LeaseHeld(
                f"run {run!r} is held by another `rlweave up` on this machine ({_pid(path)}), which has the stage "
                f"{stage}; nothing was started",
                hint="stop that one, or choose another run.name",
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: IO[str]) -> bool:
    """Tries for a moment: `is_held` has the lock for as long as it looks."""
    deadline = Deadline.after(_TRY_S)
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if deadline.expired:
            return False
        deadline.clock.wait(_TRY_S / 10)


def _path(folder: Path, stage: str) -> Path:
    return folder / _FOLDER / f"{stage}.lock"


def _pid(path: Path) -> str:
    said = path.read_text(encoding="utf-8")
    return f"process {said}" if said.isdecimal() else "it begins just now"
