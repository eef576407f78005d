"""Files of lines that several processes append to, one after the other.

Role: one way to add a line to `launches.jsonl` and the like.
Data in: a line. Data out: the line at the end of the file, whole.
Invariants: what is there is never changed. A line that a death or a full disk cut short spoils no other: the next one
begins on a line of its own, and readers pass over the piece.
Failure: `OSError`; a piece of the line may be there.
"""

from __future__ import annotations

import os
from pathlib import Path


def append_line(path: Path, line: bytes, *, sync: bool = False) -> None:
    """Add a line.

    Args:
        line: with its line break.
        sync: return when it is on the disk.

    Raises:
        OSError: it is not there, or not whole.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(line if _ends_whole(handle) else b"\n" + line)
        while left:  # a disk that becomes full takes a part first, which is no error yet
            left = left[os.write(handle, left) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def _ends_whole(handle: int) -> bool:
    """Whether the file ends with a line break, or is empty."""
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"
