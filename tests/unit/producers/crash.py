"""A log that kills its user at a chosen operation, as `kill -9` would.

Nothing is cleaned up: an open transaction stays open until a successor fences it, a group member stays a member until
its session ends (`bury`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from schemas.records import Record
from topics.catalog import Topic
from topics.clock import Deadline
from topics.log import ReaderHooks, ReaderSettings, WriterSettings
from topics.memory import MemoryLog
from topics.memory.log import MemoryAdmin
from topics.memory.reader import MemoryReader
from topics.memory.writer import MemoryWriter


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Fuse:
    """Burns down by one with each operation; at 0 it kills."""

    left: int

    def burn(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


@dataclass
class CrashingLog:
    """A memory log whose writers burn the fuse before and after each step of theirs."""

    log: MemoryLog
    fuse: Fuse
    readers: list[MemoryReader] = field(default_factory=list)

    @property
    def run(self) -> str:
        return self.log.run

    @property
    def data_partitions(self) -> int:
        return self.log.data_partitions

    def connect(self, *, deadline: Deadline) -> None:
        self.log.connect(deadline=deadline)

    def reader(self, settings: ReaderSettings, *, hooks: ReaderHooks) -> MemoryReader:
        self.readers.append(self.log.reader(settings, hooks=hooks))
        return self.readers[-1]

    def writer(self, settings: WriterSettings) -> CrashingWriter:
        return CrashingWriter(self.log.writer(settings), self.fuse if settings.linger_ms < 20 else Fuse(-1))

    def admin(self) -> MemoryAdmin:
        return self.log.admin()

    def bury(self) -> None:
        """The dead process's sessions end."""
        for reader in self.readers:
            reader.vanish()


class CrashingWriter:
    """See `CrashingLog`. Events (which linger) do not count."""

    def __init__(self, writer: MemoryWriter, fuse: Fuse) -> None:
        self._writer = writer
        self._fuse = fuse

    def start(self, *, deadline: Deadline) -> None:
        self._fuse.burn()
        self._writer.start(deadline=deadline)

    def write(self, topic: Topic, record: Record, *, partition: int | None = None) -> None:
        self._fuse.burn()
        self._writer.write(topic, record, partition=partition)

    def write_raw(
        self,
        topic: Topic,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self._fuse.burn()
        self._writer.write_raw(topic, key=key, value=value, partition=partition, headers=headers)

    def flush(self, *, deadline: Deadline) -> None:
        self._fuse.burn()
        self._writer.flush(deadline=deadline)
        self._fuse.burn()

    def transaction(self, *, deadline: Deadline) -> AbstractContextManager[None]:
        return self._transaction(deadline)

    @contextmanager
    def _transaction(self, deadline: Deadline) -> Iterator[None]:
        self._fuse.burn()
        self._writer.begin(deadline=deadline)
        try:
            yield
            self._fuse.burn()
        except Exception:
            self._writer.end(commit=False)
            raise
        self._writer.end(commit=True)
        self._fuse.burn()

    def close(self, *, deadline: Deadline) -> None:
        self._writer.close(deadline=deadline)
