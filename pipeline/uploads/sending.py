"""Uploads one checkpoint: parts first, the marker last.

Role: the work of `uploader`, for one folder, from its first part to its end.
Data in: a checkpoint's files, which nobody changes any more. Data out: what `layout` names, at the target.
Protocol: (1) list the parts that are there; (2) read each part, and send those that are not there under their digest
with their size, a few at a time, each after the sender's leave; (3) list again, all must be there; (4) write the
marker.
Invariants: a checkpoint whose marker is there is whole. One that was cut off at any moment is gone on with: parts that
are there are not sent again. Memory: as many parts as are under way.
Failure: `UploadError`; `UploadCut` when it was told to stop. What is there stays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from pipeline.traffic.classes import TrafficClass
from pipeline.traffic.sender import HostSender
from pipeline.uploads.layout import FILES, FORMAT, MARKER, PARTS, Marker, Part, UploadedFile, encode_marker
from pipeline.uploads.target import Target, open_target
from schemas.errors import UploadError


class UploadCut(UploadError):
    """It was told to stop."""


@dataclass(frozen=True, kw_only=True)
class UploadJob:
    """One checkpoint to upload.

    Attributes:
        folder: with the checkpoint's files.
        url: of the target.
        name: of the checkpoint's folder there: run and version.
    """

    folder: Path
    url: str
    name: str
    part_bytes: int
    parallel: int


@dataclass
class Progress:
    """How far an upload has come; read by other threads."""

    total_bytes: int = 0
    sent_bytes: int = 0
    present_bytes: int = 0  # were there already

    @property
    def left_bytes(self) -> int:
        """Still to be looked at or sent."""
        return max(0, self.total_bytes - self.sent_bytes - self.present_bytes)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    name: str
    offset: int
    num_bytes: int


@dataclass
class _Shared:
    """What the threads of one upload have in common."""

    job: UploadJob
    sender: HostSender
    stop: threading.Event
    progress: Progress
    present: dict[str, int]
    lock: threading.Lock = field(default_factory=threading.Lock)
    own: threading.local = field(default_factory=threading.local)
    cut: threading.Event = field(default_factory=threading.Event)  # one part failed: the others need not begin


def send_checkpoint(
    job: UploadJob, *, sender: HostSender, stop: threading.Event, progress: Progress | None = None
) -> Marker:
    """Upload a checkpoint; the numbers are those of the module text.

    Raises:
        UploadCut: `stop` was set.
        UploadError: the target or the disk failed.
        SettingsError: the target's file system is not installed.
    """
    target = open_target(job.url)
    followed = progress if progress is not None else Progress()
    pieces = list(_pieces(job))
    followed.total_bytes = sum(piece.num_bytes for piece in pieces)
    target.make_folder(f"{job.name}/{PARTS}")
    shared = _Shared(
        job=job,
        sender=sender,
        stop=stop,
        progress=followed,
        present=target.sizes(f"{job.name}/{PARTS}"),  # (1)
    )
    parts = _send_pieces(pieces, shared)  # (2)
    marker = Marker(
        format=FORMAT,
        files=tuple(_file(name, pieces=pieces, parts=parts) for name in FILES),
    )
    _check(marker, present=target.sizes(f"{job.name}/{PARTS}"))  # (3)
    target.write(f"{job.name}/{MARKER}", encode_marker(marker))  # (4)
    return marker


def _pieces(job: UploadJob) -> Iterator[_Piece]:
    for name in FILES:
        try:
            num_bytes = (job.folder / name).stat().st_size
        except OSError as error:
            raise UploadError(f"{job.folder / name} cannot be read: {error.strerror}") from error
        for offset in range(0, num_bytes, job.part_bytes):
            yield _Piece(name=name, offset=offset, num_bytes=min(job.part_bytes, num_bytes - offset))


def _send_pieces(pieces: list[_Piece], shared: _Shared) -> dict[_Piece, Part]:
    with ThreadPoolExecutor(shared.job.parallel, thread_name_prefix="upload") as pool:
        futures: dict[Future[Part], _Piece] = {pool.submit(_send, piece, shared): piece for piece in pieces}
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        shared.cut.set()  # when all is done there is nobody left to hear it
        pool.shutdown(cancel_futures=True)
    for future in sorted(done, key=lambda one: isinstance(one.exception(), UploadCut)):
        future.result()  # raises; a cut, which a failure of another part brings about, last
    return {piece: future.result() for future, piece in futures.items()}


def _send(piece: _Piece, shared: _Shared) -> Part:
    if shared.stop.is_set() or shared.cut.is_set():
        raise UploadCut(f"{shared.job.name} was cut off")
    content = _read(shared.job.folder / piece.name, piece=piece)
    digest = blake3(content).hexdigest()
    with shared.lock:
        is_there = shared.present.get(digest) == len(content)
        shared.present[digest] = len(content)  # another piece with these bytes need not send them
    if is_there:
        with shared.lock:
            shared.progress.present_bytes += len(content)
        return Part(digest=digest, num_bytes=len(content))
    if not shared.sender.pass_piece(TrafficClass.CHECKPOINTS, len(content), stop=shared.stop):
        raise UploadCut(f"{shared.job.name} was cut off")
    _own_target(shared).write(f"{shared.job.name}/{PARTS}/{digest}", content)
    shared.sender.sent(TrafficClass.CHECKPOINTS, len(content))
    with shared.lock:
        shared.progress.sent_bytes += len(content)
    return Part(digest=digest, num_bytes=len(content))


def _own_target(shared: _Shared) -> Target:
    """Of this thread: a connection serves one at a time."""
    found = getattr(shared.own, "target", None)
    if not isinstance(found, Target):
        found = shared.own.target = open_target(shared.job.url)
    return found


def _read(path: Path, *, piece: _Piece) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), piece.num_bytes, piece.offset)
    except OSError as error:
        raise UploadError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) != piece.num_bytes:
        raise UploadError(f"{path} ends before byte {piece.offset + piece.num_bytes}")
    return content


def _file(name: str, *, pieces: list[_Piece], parts: dict[_Piece, Part]) -> UploadedFile:
    own = tuple(parts[piece] for piece in pieces if piece.name == name)
    return UploadedFile(name=name, num_bytes=sum(part.num_bytes for part in own), parts=own)


def _check(marker: Marker, *, present: dict[str, int]) -> None:
    missing = [digest for digest, num_bytes in marker.part_sizes.items() if present.get(digest) != num_bytes]
    if missing:
        raise UploadError(f"{len(missing)} parts are not there though they were written, {missing[0]} among them")
