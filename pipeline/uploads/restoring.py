"""Brings an uploaded checkpoint back to the learner's disk.

Role: before `consumers.learner.checkpoint` restores, when the local folder has nothing.
Data in: a target. Data out: a checkpoint folder as the learner writes it, and what the learner read from it.
Invariants: only one whose marker is there, and that survives in the present history; every part and its length are
verified, and the folder appears whole (renamed) or not at all. Files are written under their known names only. Nothing
is fetched whose size is not what the marker says. What the learner cannot read is removed again.
Failure: `UploadError`: the target failed; `UploadDamaged`: what is there is not what its marker says, or no checkpoint;
an older one is taken then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from pipeline.uploads.layout import MARKER, PARTS, Marker, UploadedFile, decode_marker
from pipeline.uploads.pruning import uploaded_versions
from pipeline.uploads.target import Target, UploadAbsent
from schemas.errors import CheckpointError, UploadError
from schemas.records import Version

_MAX_MARKER_BYTES = 64 * 1024 * 1024
T = TypeVar("T")


class UploadDamaged(UploadError):
    """What is there is not what it says: another try brings the same."""


def bring_newest_back(
    target: Target,
    *,
    run: str,
    folder: Path,
    survives: Callable[[Version], bool],
    tell: Callable[[str], None],
    read: Callable[[Path], T],
) -> T | None:
    """Download the newest whole checkpoint of the present history, and read it; None: there is none.

    Args:
        tell: gets why one was passed over.
        read: gives what is in its folder; raises `CheckpointError` when that is no checkpoint.

    Raises:
        UploadError: the target or the disk failed.
        UploadDamaged: there are some, and all of them are damaged.
    """
    damaged: UploadDamaged | None = None
    for version in uploaded_versions(target, run=run):
        if not survives(version):
            tell(f"uploaded checkpoint {version} is of a branch that the ledger says was left")
            continue
        try:
            return _readable(bring_back(target, version, run=run, folder=folder), read=read)
        except UploadDamaged as error:
            damaged = error
            tell(error.message)
    if damaged is not None:
        raise damaged
    return None


def bring_back(target: Target, version: Version, *, run: str, folder: Path) -> Path:
    """Download a checkpoint into `folder`; gives where it is.

    Raises:
        UploadDamaged: the marker is none, a part is gone, or has other bytes than its name says.
        UploadError: the target or the disk failed.
    """
    marker = _marker(target, f"{run}/{version}")
    place, aside = folder / str(version), folder / f".tmp-{version}-{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        for file in marker.files:
            _write(aside / file.name, file=file, target=target, parts=f"{run}/{version}/{PARTS}")
        shutil.rmtree(place, ignore_errors=True)  # remains: whoever brings back found nothing whole here
        aside.rename(place)
    except OSError as error:
        raise UploadError(f"checkpoint {version} was not brought back to {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return place


def _readable(place: Path, *, read: Callable[[Path], T]) -> T:
    try:
        return read(place)
    except CheckpointError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise UploadDamaged(f"what was uploaded is no checkpoint: {error.message}") from error


def _marker(target: Target, name: str) -> Marker:
    """Of a checkpoint whose parts are there with the sizes that it says."""
    if target.sizes(name).get(MARKER, 0) > _MAX_MARKER_BYTES:
        raise UploadDamaged(f"{name}/{MARKER} has more than {_MAX_MARKER_BYTES} bytes")
    content = target.read(f"{name}/{MARKER}")
    try:
        marker = decode_marker(content)
    except UploadError as error:
        raise UploadDamaged(f"{name}: {error.message}") from error
    present = target.sizes(f"{name}/{PARTS}")
    for digest, num_bytes in marker.part_sizes.items():
        if digest not in present:
            raise UploadDamaged(f"part {digest} of {name} is gone from the target")
        if present[digest] != num_bytes:
            raise UploadDamaged(f"part {digest} of {name} has {present[digest]} bytes, its marker says {num_bytes}")
    return marker


def _write(path: Path, *, file: UploadedFile, target: Target, parts: str) -> None:
    with path.open("xb") as out:
        for part in file.parts:
            try:
                content = target.read(f"{parts}/{part.digest}")
            except UploadAbsent as error:
                raise UploadDamaged(f"a part of {path.name} is gone from the target: {error.message}") from error
            if len(content) != part.num_bytes or blake3(content).hexdigest() != part.digest:
                raise UploadDamaged(
                    f"part {part.digest} of {path.name} at the target has other bytes than its name says",
                    hint="the target was altered or is damaged; look who may write there",
                )
            out.write(content)
        out.flush()
        os.fsync(out.fileno())
