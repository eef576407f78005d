"""Files that several processes share: atomic writes, a lock with a deadline, and claims.

Role: the primitives under the chunk store, the token file and the peer file.
Invariants: a reader sees the old file, the new file or none, never half of one. Nothing is synced to the device: what
matters is verified by digest on every read, so a torn file after a power cut is found and fetched again.
Failure: a full disk raises `WeightsError` and leaves no temporary file behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from schemas.errors import WeightsError
from topics.clock import Deadline

BytesLike: TypeAlias = bytes | bytearray | memoryview

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCK_POLL_S = 0.005


def atomic_write(path: Path, data: BytesLike, *, tmp_dir: Path, mode: int = 0o644) -> None:
    """Write `path` aside in `tmp_dir` (same file system) and rename it into place.

    Raises:
        WeightsError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    tmp = tmp_dir / uuid.uuid4().hex
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(tmp, data, mode=mode)
        os.replace(tmp, path)
    except OSError as error:
        raise _write_failed(path, error, num_bytes=len(data)) from error
    finally:
        tmp.unlink(missing_ok=True)


def append_whole(path: Path, data: bytes) -> None:
    """Append to `path`, all of `data` or nothing; the caller keeps other writers away.

    Raises:
        WeightsError: the disk is full or the file cannot be written.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with open(fd, "ab", buffering=0) as file:
            end = os.fstat(fd).st_size
            written_bytes = file.write(data)
            if written_bytes != len(data):
                os.ftruncate(fd, end)
    except OSError as error:
        raise _write_failed(path, error, num_bytes=len(data)) from error
    if written_bytes != len(data):
        raise _write_failed(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), num_bytes=len(data))


def make_folder(path: Path) -> None:
    """Make a folder and those above it.

    Raises:
        WeightsError: the disk is full or the place cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_failed(path, error, num_bytes=0) from error


def write_new(path: Path, data: BytesLike, *, mode: int) -> None:
    """Create `path` with `data`; a file that is already there is an error (OSError)."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb", buffering=0) as file:
        view = memoryview(data)
        while view.nbytes > 0:
            view = view[file.write(view) :]


@contextmanager
def locked(path: Path, *, shared: bool, limit_s: float) -> Iterator[None]:
    """Hold an advisory lock on `path`, against other processes and threads.

    Raises:
        DeadlineExceeded: another process holds it for longer than `limit_s`.
    """
    deadline = Deadline.after(limit_s)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd, shared=shared):
            deadline.check(f"the lock {path}, held by another process")
            deadline.clock.wait(_LOCK_POLL_S)
        yield
    finally:
        os.close(fd)  # releases the lock


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock on `path`, in this process or another one. A file that is absent is not locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd, shared=False)
    finally:
        os.close(fd)


@contextmanager
def claimed(path: Path, *, number: int) -> Iterator[bool]:
    """Claim `number` (0 to 2^62) among all who claim in `path`; gives whether it is ours. It does not wait.

    A claim is a lock on that byte of the file, which may lie far behind its end: no file of its own, nothing to tidy
    up, and the system ends it with the process (open file description locks, fcntl(2)).

    Raises:
        WeightsError: the file cannot be made.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _write_failed(path, error, num_bytes=0) from error
    try:
        yield _try_claim(fd, number=number)
    finally:
        os.close(fd)  # releases it


def _try_claim(fd: int, *, number: int) -> bool:
    # struct flock: type, whence, start, length, pid, which must be 0 here.
    wanted = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody else's
        return False
    return True


def _try_lock(fd: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_failed(path: Path, error: OSError, *, num_bytes: int) -> WeightsError:
    if error.errno in _FULL:
        return WeightsError(
            f"no space left for {num_bytes} bytes of {path.name} in {path.parent}; it was not stored",
            hint="free space, lower the store's max_bytes, or move the store to a larger disk",
        )
    return WeightsError(f"cannot write {path}: {error.strerror}; it was not stored")
