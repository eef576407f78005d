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
from collections.abc import Iterator, Mapping

import orjson

from pipeline.weights.arrays import Array, pieces, wire_dtype_of
from pipeline.weights.dtypes import tensor_num_bytes
from schemas.errors import EngineError

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
PRINTS_PREFIX = "rlweave.prints:"  # before a tensor's name: what `verifying` knows of it, not part of the state
_ALIGN_BYTES = 8


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
    own = dict(sorted(state.items()))
    fd = os.memfd_create(f"rlweave-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", buffering=0, closefd=False) as file:
            for piece in _content(own):
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


def _content(own: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    header: dict[str, object] = {}
    at = 0
    dtypes = {name: wire_dtype_of(tensor, wire_dtype=None) for name, tensor in own.items()}
    for name, tensor in own.items():
        shape = tuple(tensor.shape)
        end = at + tensor_num_bytes(dtypes[name], shape)
        header[name] = {"dtype": dtypes[name], "shape": shape, "data_offsets": (at, end)}
        at = end
    packed = orjson.dumps(header)
    packed += b" " * (-len(packed) % _ALIGN_BYTES)
    yield len(packed).to_bytes(8, "little")
    yield packed
    for name, tensor in own.items():
        yield from pieces(tensor, dtype=dtypes[name])
