"""The checkpoint that is being uploaded, held so that retention of the learner's disk does not take it away.

Role: `uploads/<lineage>.<step>/` in the run's folder: second names (hard links) of the checkpoint's files.
Invariants: a folder there is whole, or is removed: it is made aside and renamed. Held are files that nobody changes
any more. Room: none until the checkpoint itself is removed; a copy, where the file system has no second names. One
process at a time holds anything here: `Turn`, a lock of the system, which a process that dies gives back.
Failure: `UploadError` when the checkpoint is gone by now, or the disk is full.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from pipeline.uploads.layout import FILES, version_of
from schemas.errors import UploadError
from schemas.records import Version

_ASIDE = ".tmp-"


class Turn:
    """Who may hold checkpoints in a folder, and so upload them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def take(self) -> bool:
        """Whether it is ours.

        Raises:
            UploadError: the folder cannot be written.
        """
        if self._handle >= 0:
            return True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UploadError(f"{self._folder} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process has it
            os.close(handle)
            return False
        self._handle = handle
        return True

    def give_back(self) -> None:
        """It is anybody's."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def hold(checkpoint: Path, *, folder: Path) -> Path:
    """Hold a checkpoint; gives the folder to read it from.

    Raises:
        UploadError: it cannot be held.
    """
    held, aside = folder / checkpoint.name, folder / f"{_ASIDE}{checkpoint.name}"
    if held.is_dir():
        return held
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name in FILES:
            _link(checkpoint / name, aside / name)
        aside.rename(held)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UploadError(f"checkpoint {checkpoint} cannot be held for its upload: {error.strerror}") from error
    return held


def held_versions(folder: Path) -> list[Version]:
    """What a former process held, newest first."""
    if not folder.is_dir():
        return []
    found = [version_of(path.name) for path in folder.iterdir()]
    return sorted((version for version in found if version is not None), reverse=True)


def let_go(version: Version, *, folder: Path) -> None:
    """Hold a checkpoint no more."""
    shutil.rmtree(folder / str(version), ignore_errors=True)


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(file, name)
