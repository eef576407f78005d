"""One `rlweave up` per stage and run folder.

Role: two launches in the same moment see nothing of each other's processes yet; the second one must not write over the
settings that the first one's processes are started with.
Data out: `locks/<stage>.lock` in the run's folder, each with the pid of its holder.
Invariants: of two that begin together exactly one goes on; the kernel drops a lock with its process, however that ends
(flock(2)). Other machines have folders of their own: between them events, leases and fences decide.
Failure: `LeaseHeld` naming the holder, `SettingsError` when the folder cannot be written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from schemas.errors import LeaseHeld, SettingsError
from topics.clock import Deadline

_FOLDER = "locks"
_TRY_S = 0.2


@contextmanager
def hold(folder: Path, *, stages: Sequence[str]) -> Iterator[None]:
    """Hold these stages of the run in `folder` for as long as the context lasts.

    Raises:
        LeaseHeld: another process holds one of them.
        SettingsError: a lock cannot be made.
    """
    with ExitStack() as held:
        for stage in sorted(stages):  # in one order: of two, the first to get the first lock gets all that both want
            held.enter_context(_hold_one(_path(folder, stage), run=folder.name, stage=stage))
        yield


@contextmanager
def hold_off(folder: Path, *, stage: str) -> Iterator[bool]:
    """Whether nobody holds the stage; nobody can begin to for as long as the context lasts, which is to be short.

    Raises:
        SettingsError: the lock cannot be made.
    """
    with _open(_path(folder, stage)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        else:
            is_free = True
        yield is_free


@contextmanager
def _hold_one(path: Path, *, run: str, stage: str) -> Iterator[None]:
    with _open(path) as file:
        if not _lock(file):
            raise LeaseHeld(
                f"run {run!r} is held by another `rlweave up` on this machine ({_pid(path)}), which has the stage "
                f"{stage}; nothing was started",
                hint="stop that one, or choose another run.name",
            )
        with suppress(OSError):  # of a full disk: the lock is held all the same, without a name
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield


def _open(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")
    except OSError as error:
        raise SettingsError(
            f"the lock {path} cannot be made: {error.strerror}; nothing was started",
            hint="see that run.dir can be written by this user, and that there is room",
        ) from error


def _lock(file: IO[bytes]) -> bool:
    """Tries for a moment: `hold_off` has the lock for as long as it looks."""
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
    said = path.read_text(encoding="ascii", errors="replace")
    return f"process {said}" if said.isdecimal() else "it begins just now"
