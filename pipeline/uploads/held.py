"""The checkpoint that is being uploaded, held so that retention of the learner's disk does not take it away.

Role: `uploads/<lineage>.<step>/` in the run's folder: second names (hard links) of the checkpoint's files.
Invariants: a folder there is whole, or is removed: it is made aside and renamed. Held are files that nobody changes
any more. Room: none until the checkpoint itself is removed; a copy, where the file system has no second names.
Failure: `UploadError` when the checkpoint is gone by now, or the disk is full.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.uploads.layout import FILES, version_of
from schemas.errors import UploadError
from schemas.records import Version

_ASIDE = ".tmp-"


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
