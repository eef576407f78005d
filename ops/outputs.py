"""Output paths that a command is given: looked at before its work begins, and named when they cannot be written.

Role: under every command that writes a file or a folder.
Data in: a path and the option or setting it came from. Data out: nothing; what is looked at is left as it was.
Invariants: the look tries what the work will do, in the nearest folder that exists, and takes it back: permission bits
say too little (a root user, read-only mounts, file systems like /proc).
Failure: `SettingsError` with the path, the reason of the system and what to do.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from schemas.errors import SettingsError

STANDARD_OUTPUT = "-"


def check_folder(path: Path, *, setting: str) -> None:
    """See that files can be made in the folder `path`, or that it can be made.

    Args:
        setting: where the path comes from, for the message: "--into", "run.dir".

    Raises:
        SettingsError: they cannot, or it cannot.
    """
    with writing(path, setting=setting):
        _check_name(path)
        _check_place(path)


def check_file(path: Path, *, setting: str) -> None:
    """See that the file `path` can be written, or made; `-` is the standard output.

    Raises:
        SettingsError: it cannot.
    """
    if str(path) == STANDARD_OUTPUT:
        return
    with writing(path, setting=setting):
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder, not a file")
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            _check_name(path)
            _check_place(path.parent)


@contextmanager
def writing(path: Path, *, setting: str) -> Iterator[None]:
    """Around what writes `path`: what the system refuses becomes an error that names path and setting.

    Raises:
        SettingsError: an `OSError` came up.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror if error.filename in (None, str(path)) else f"{error.filename}: {error.strerror}"
        raise SettingsError(
            f"{setting}: {path} cannot be written: {reason}",
            hint="give a place on a disk with room that this user may write; folders that are missing are made",
        ) from error


def _check_place(folder: Path) -> None:
    place = _nearest(folder)
    if not place.is_dir():
        raise NotADirectoryError(0, f"{place} is a file, not a folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".rlweave-", dir=place):
            pass
    except OSError as error:
        raise OSError(error.errno, f"nothing can be made in {place} ({error.strerror})") from error


def _nearest(path: Path) -> Path:
    """The longest part of the path that exists."""
    for place in (path, *path.absolute().parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            place.stat()
            return place
    return Path("/")


def _check_name(path: Path) -> None:
    """Refuse a name that no file can have; the system says so for those that are too long."""
    if "\0" in str(path):
        raise FileNotFoundError(0, "a path cannot hold a zero byte")
    with suppress(FileNotFoundError, NotADirectoryError):
        path.lstat()
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(0, f"it is a link to {os.readlink(path)}, which does not exist")
