"""Small disks for the folders that may run full: a tmpfs each, over `checkpoints` and `weights` of a run's folder.

Role: mounted before the run starts, filled by a ballast file, emptied again.
Invariants: only what was mounted here is unmounted; a disk that an earlier run left behind is taken down first.
Failure: `missing` says why there can be none (not root, no `mount`, not allowed); `ChaosError` when a mount fails.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from ops.chaos.errors import ChaosError

FOLDERS = {"checkpoints": 48, "weights": 48}  # MiB
_BALLAST = ".ballast"
_PIECE_BYTES = 64 * 1024
_COMMAND_S = 20.0


class Disks:
    """The small disks of one run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folders = {name: folder.absolute() / name for name in FOLDERS}

    def mount(self) -> None:
        """Mount all.

        Raises:
            ChaosError: one cannot be mounted.
        """
        self.close()
        for name, path in self._folders.items():
            path.mkdir(parents=True, exist_ok=True)
            _mount(path, size_mib=FOLDERS[name])

    def fill(self, name: str) -> None:
        """Write until nothing more fits."""
        ballast = self._folders[name] / _BALLAST
        with suppress(_DiskFull), ballast.open("ab", buffering=0) as file:
            while True:
                _write(file.fileno())

    def free(self, name: str) -> None:
        """Take the ballast away."""
        (self._folders[name] / _BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount all; lazily where a process still has files open."""
        for path in self._folders.values():
            if path.is_mount():
                _run("umount", "--lazy", str(path))


class _DiskFull(Exception):
    pass


def missing() -> str | None:
    """Why there can be no small disks here; None: there can."""
    if os.geteuid() != 0:
        return "a small disk can be mounted by root only"
    if shutil.which("mount") is None or shutil.which("umount") is None:
        return "`mount` is not installed (Debian: apt install mount)"
    with tempfile.TemporaryDirectory(prefix="rlweave-disk-") as folder:
        try:
            _mount(Path(folder), size_mib=1)
        except ChaosError as error:
            return error.message
        _run("umount", folder)
    return None


def _mount(path: Path, *, size_mib: int) -> None:
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0700", "rlweave-chaos", str(path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode != 0:
        raise ChaosError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _write(descriptor: int) -> None:
    """One piece, then single bytes: a disk is full when not even one fits."""
    for size in (_PIECE_BYTES, 1):
        try:
            os.write(descriptor, bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            if size == 1:
                raise _DiskFull from error
        else:
            return
