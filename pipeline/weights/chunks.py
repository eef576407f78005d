"""The chunk store: content-addressed pieces of model states in a folder.

Role: learner, fetcher and peer server of one host share it; the peer serves straight from its files.
Data in and out: bytes, named by their blake3 digest (64 hex digits).
Layout: `chunks/<first two digits>/<digest>`, `pins/<owner>` (one digest a line), `living/<owner>` (empty, locked),
`tmp/`, `lock`, `claims` (empty), `journal` (what came, in order).
Invariants: a chunk is renamed into place whole, and checked against its name on every read. Any number of processes may
use one store: putting a chunk shares the lock, pinning and sweeping exclude everything else, so a sweep can neither
remove a chunk that was just pinned nor a temporary file that is still being written.
Failure: `WeightsError`; an altered chunk is removed and reported as absent, so that it is fetched again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from pipeline.weights.files import BytesLike, append_whole, atomic_write, claimed, is_locked, locked, make_folder
from pipeline.weights.journal import cut_journal, note_chunk
from schemas.errors import ChunkMismatch, WeightsError
from schemas.records import ChunkRef

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LOCK_LIMIT_S = 30.0


def digest_of(data: BytesLike) -> str:
    """The name of these bytes: blake3, 64 hex digits."""
    return blake3(data).hexdigest()


def check_digest(digest: str) -> str:
    """Give back a well-formed digest; anything else could name a file outside the store.

    Raises:
        WeightsError: it is not 64 lower-case hex digits.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise WeightsError(f"chunk digest {digest[:80]!r} is not 64 lower-case hex digits; it was refused")
    return digest


@dataclass(frozen=True)
class _Stored:
    path: Path
    num_bytes: int
    modified_ns: int


class ChunkStore:
    """Chunks under `root`. Constructing it touches nothing.

    Args:
        root: the folder, made when first written to; on tmpfs the chunks live in memory.
        max_bytes: `sweep` removes unpinned chunks above this.
    """

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes

    def path_of(self, digest: str) -> Path:
        """Where the chunk is, or would be.

        Raises:
            WeightsError: the digest is malformed.
        """
        check_digest(digest)
        return self.root / "chunks" / digest[:2] / digest

    def put(self, data: BytesLike, *, expect: str | None = None, owner: str | None = None) -> ChunkRef:
        """Store `data`; the same bytes twice are stored once and count as new again.

        Args:
            expect: the digest `data` must have.
            owner: pins the chunk for this lease before it becomes visible.

        Raises:
            ChunkMismatch: `data` has another digest than `expect`; nothing was stored.
            WeightsError: the disk is full; nothing was stored.
        """
        digest = digest_of(data)
        if expect is not None and digest != expect:
            raise ChunkMismatch(f"{len(data)} bytes have digest {digest}, not {expect}; they were not stored")
        if owner is not None:
            self.pin(owner, {digest})
        with self._locked(shared=True):
            path = self.path_of(digest)
            if not _touch(path, num_bytes=len(data)):
                atomic_write(path, data, tmp_dir=self.root / "tmp")
                note_chunk(self.root, digest)
        return ChunkRef(digest=digest, num_bytes=len(data))

    def has(self, digest: str) -> bool:
        """Whether a file of that name is there; its bytes are not read."""
        return self.path_of(digest).is_file()

    def verified(self, digest: str) -> bool:
        """Whether the chunk is there with the right bytes; an altered one is removed."""
        return self._read(digest) is not None

    def get(self, digest: str) -> bytes:
        """The chunk's bytes, verified.

        Raises:
            WeightsError: the chunk is absent, or was altered and has been removed.
        """
        had = self.has(digest)
        data = self._read(digest)
        if data is None:
            state = "was altered on disk and has been removed" if had else "is absent"
            raise WeightsError(f"chunk {digest} {state} ({self.root})", hint="fetch this version again")
        return data

    def claim(self, digest: str) -> AbstractContextManager[bool]:
        """Whether we may fetch this chunk, for as long as the context lasts: no two do so at a time.

        False: another process, or another part of this one, is at it. A claim ends with its process.

        Raises:
            WeightsError: the digest is malformed, or the folder cannot be written.
        """
        number = int(check_digest(digest)[:15], 16)
        make_folder(self.root)
        return claimed(self.root / "claims", number=number)

    def pin(self, owner: str, digests: Set[str]) -> None:
        """Add `digests` to the owner's lease; they outlive every sweep until it unpins them.

        Name the owner after what needs the chunks, such as `learner.1.30`. A digest may be pinned before it is there.

        The lease is appended to, whatever its length, so pinning chunk by chunk stays cheap.

        Raises:
            WeightsError: the owner's name or a digest is malformed, or the disk is full.
        """
        # A line break before each as well: the last line of a writer that died may lack its own.
        lines = "".join(f"\n{check_digest(digest)}\n" for digest in sorted(digests)).encode()
        path = self._pin_path(owner)
        if lines:
            with self._locked(shared=False):
                append_whole(path, lines)

    def unpin(self, owner: str, digests: Set[str] | None = None) -> None:
        """Take `digests` (None: all) out of the owner's lease; what is not in it is ignored."""
        self._edit_pins(owner, lambda old: set() if digests is None else old - digests)

    def pins(self) -> dict[str, frozenset[str]]:
        """Every owner with what it pins."""
        folder = self.root / "pins"
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return {path.name: frozenset(_read_pins(path)) for path in paths}

    @contextmanager
    def living(self, name: str) -> Iterator[None]:
        """Keep the leases of the owners `name` and `name.*` for as long as the context lasts. The first sweep after it,
        or after the end of this process, ends them; leases of names that were never given here last until unpinned.

        Several may live under one name, such as a process and its successor.

        Raises:
            WeightsError: the name is malformed, or the folder cannot be written.
        """
        path = self.root / "living" / _checked_owner(name)
        with ExitStack() as held:
            with self._locked(shared=True):  # a sweep finds the file absent or locked
                make_folder(path.parent)
                held.enter_context(locked(path, shared=True, limit_s=_LOCK_LIMIT_S))
            yield

    def num_bytes(self) -> int:
        """Bytes of all chunks present."""
        return sum(chunk.num_bytes for chunk in self._stored())

    def sweep(self, keep: Set[str] = frozenset()) -> int:
        """Remove chunks that are neither pinned nor in `keep`, oldest first, until at most `max_bytes` are left.

        Remains of writers that died are removed too, and leases of the dead (`living`). Pinned chunks may keep the
        store above its bound.

        Returns:
            Bytes removed.
        """
        with self._locked(shared=False):
            for remains in (self.root / "tmp").iterdir():
                remains.unlink(missing_ok=True)  # no writer is active while the lock is exclusive
            self._end_leases_of_the_dead()
            wanted = frozenset(keep).union(*self.pins().values())
            stored = sorted(self._stored(), key=lambda chunk: chunk.modified_ns)
            cut_journal(self.root, num_chunks=len(stored))
            removable = [chunk for chunk in stored if chunk.path.name not in wanted]
            return _remove(removable, excess_bytes=sum(c.num_bytes for c in stored) - self.max_bytes)

    def _read(self, digest: str) -> bytes | None:
        path = self.path_of(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if digest_of(data) == digest:
            return data
        path.unlink(missing_ok=True)
        return None

    def _edit_pins(self, owner: str, edit: Callable[[set[str]], set[str]]) -> None:
        path = self._pin_path(owner)
        with self._locked(shared=False):
            new = edit(_read_pins(path))
            if not new:
                path.unlink(missing_ok=True)
                return
            atomic_write(path, "".join(f"{d}\n" for d in sorted(new)).encode(), tmp_dir=self.root / "tmp")

    def _end_leases_of_the_dead(self) -> None:
        folder = self.root / "living"
        names = [path.name for path in folder.iterdir() if not is_locked(path)] if folder.is_dir() else []
        for name in names:
            for lease in (self.root / "pins").iterdir():
                if lease.name == name or lease.name.startswith(f"{name}."):
                    lease.unlink()
            (folder / name).unlink()

    def _pin_path(self, owner: str) -> Path:
        return self.root / "pins" / _checked_owner(owner)

    def _stored(self) -> Iterable[_Stored]:
        for path in (self.root / "chunks").glob("*/*"):
            try:
                stat = path.stat()
            except FileNotFoundError:  # removed by another process meanwhile
                continue
            yield _Stored(path=path, num_bytes=stat.st_size, modified_ns=stat.st_mtime_ns)

    def _locked(self, *, shared: bool) -> AbstractContextManager[None]:
        for name in ("chunks", "pins", "tmp"):
            make_folder(self.root / name)
        return locked(self.root / "lock", shared=shared, limit_s=_LOCK_LIMIT_S)


def stores_in(folder: Path) -> list[ChunkStore]:
    """The chunk stores that are in `folder` now, to read from: every folder in it."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []
    return [ChunkStore(folder / name, max_bytes=0) for name in names]


def _checked_owner(owner: str) -> str:
    if _OWNER.fullmatch(owner) is None:
        raise WeightsError(f"lease owner {owner[:140]!r} is not 1 to 128 of A-Z a-z 0-9 . _ -; nothing was pinned")
    return owner


def _touch(path: Path, *, num_bytes: int) -> bool:
    """Make a chunk that is there the newest one. False: it is not there, or not whole."""
    try:
        if path.stat().st_size != num_bytes:
            return False
        path.touch()
    except FileNotFoundError:
        return False
    return True


def _read_pins(path: Path) -> set[str]:
    try:
        lines = path.read_text("ascii", errors="replace").split()
    except FileNotFoundError:
        return set()
    return {line for line in lines if _DIGEST.fullmatch(line)}  # a writer may have died within its last line


def _remove(chunks: list[_Stored], *, excess_bytes: int) -> int:
    removed_bytes = 0
    for chunk in chunks:
        if removed_bytes >= excess_bytes:
            break
        chunk.path.unlink(missing_ok=True)
        removed_bytes += chunk.num_bytes
    return removed_bytes
