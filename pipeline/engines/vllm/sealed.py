"""A weight state as a file in memory that nobody can change any more.

Role: how a verified state reaches vLLM's worker process: by a path, never by pickle.
Data in: tensors by name; data out: a memfd (memfd_create(2)) in safetensors format
(https://github.com/huggingface/safetensors#format) and its path.
Invariants: the file is sealed (fcntl(2), F_ADD_SEALS) before its path is given away, so what was verified is what is
read; it has no name in any folder, so a killed process leaves nothing behind.
Failure: `EngineError` when there is no memory for it.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Mapping

from pipeline.model_folder import safetensors_content
from pipeline.weights.arrays import Array
from schemas.errors import EngineError

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
PRINTS_PREFIX = "rlweave.prints:"  # before a tensor's name: what `verifying` knows of it, not part of the state


class SealedState:
    """A sealed file; its memory is freed with `close` or with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._release = weakref.finalize(self, os.close, fd)

    @property
    def path(self) -> str:
        """Where another process of this user opens the file."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._release()


def seal(state: Mapping[str, Array], *, name: str) -> SealedState:
    """Write a state, its tied names left out, into a sealed memory file.

    Raises:
        EngineError: no memory, or a dtype safetensors does not have.
    """
    fd = os.memfd_create(f"rlweave-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", buffering=0, closefd=False) as file:
            for piece in safetensors_content(state):
                view = memoryview(piece)
                while view.nbytes > 0:
                    view = view[file.write(view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        os.close(fd)
        raise EngineError(
            f"version {name} cannot be staged in memory: {error.strerror}; the old version is still served",
            hint="give the process more memory; one copy of the weights is staged beside the one served",
        ) from error
    return SealedState(fd)


def is_sealed(fd: int) -> bool:
    """Whether an open file can no longer be changed by anyone."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:  # not a memfd
        return False
