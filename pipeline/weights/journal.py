"""The journal of a chunk store: the digests in the order in which they came, so that a reader need not list the folder.

Role: `ChunkStore.put` notes each new chunk, the peer server reads on and tells those who wait for it.
Data in and out: lines of 65 bytes, a digest and a line break.
Invariants: a chunk is in place before its line is. The journal is a hint: it may lack chunks (a writer died in between,
the disk was full) and name some that were swept since, so readers look at the files now and then. Cutting it makes a
new file; a reader notices and is told to look.
Failure: none here; what cannot be read counts as not there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.weights.files import atomic_write

JOURNAL = "journal"
LINE_BYTES = 65
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_MIN_CUT_LINES = 4096
_MAX_READ_BYTES = 2**20  # at a time


def note_chunk(root: Path, digest: str) -> None:
    """Add a line for a chunk that is in place. Any number of processes may do so at once."""
    with suppress(OSError):  # the chunk is stored all the same, and found by looking
        fd = os.open(root / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{digest}\n".encode())
        finally:
            os.close(fd)


def cut_journal(root: Path, *, num_chunks: int) -> None:
    """Begin a new journal when the old one has become much longer than the store. The caller keeps writers away."""
    path = root / JOURNAL
    with suppress(FileNotFoundError):
        if path.stat().st_size > LINE_BYTES * max(_MIN_CUT_LINES, 4 * num_chunks):
            atomic_write(path, b"", tmp_dir=root / "tmp")


class JournalReader:
    """Reads one journal on from where it was."""

    def __init__(self, root: Path) -> None:
        self._path = root / JOURNAL
        self._file = (0, 0)  # device and inode; none so far
        self._offset = 0

    def poll(self) -> tuple[list[str], bool]:
        """Digests that are new, and whether more may be there: the folder must be looked at."""
        try:
            stat = os.stat(self._path)
        except OSError:
            was_there = self._file != (0, 0)
            self._file, self._offset = (0, 0), 0
            return [], was_there
        file = (stat.st_dev, stat.st_ino)
        if file != self._file or stat.st_size < self._offset:
            self._file, self._offset = file, stat.st_size
            return [], True
        return (self._read(), False) if stat.st_size > self._offset else ([], False)

    def _read(self) -> list[str]:
        try:
            with open(self._path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), _MAX_READ_BYTES, self._offset)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]  # a line that is being written is read next time
        self._offset += len(whole)
        return [line.decode() for line in whole.split(b"\n") if _DIGEST.fullmatch(line)]


class Journals:
    """The journals of all stores of a host, whose number may grow.

    Args:
        roots: gives the stores' folders.
    """

    def __init__(self, roots: Callable[[], Iterable[Path]]) -> None:
        self._roots = roots
        self._readers: dict[Path, JournalReader] = {}

    def poll(self) -> tuple[list[str], bool]:
        """As `JournalReader.poll`, of all of them. A store that was not known is one to be looked at."""
        found: list[str] = []
        must_look = False
        for root in self._roots():
            if root not in self._readers:
                self._readers[root] = JournalReader(root)
            digests, lost = self._readers[root].poll()
            found += digests
            must_look |= lost
        return found, must_look
