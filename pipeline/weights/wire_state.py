"""A whole state as the bytes that travel, in memory of its own.

Role: what a delta is made from (the learner keeps the last published one) and applied to (an engine keeps the one it
was given).
Data in: tensors of any device in numpy or torch. Data out: one flat byte buffer per tensor, in canonical order.
Invariants: `entries` and `buffers` go together; a tied tensor has an empty buffer. `digest` is what a manifest calls
the state's digest.
Failure: `WeightsError` when tensors are not what the entries say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from pipeline.weights.arrays import Array, pieces, raw_bytes, require_little_endian
from pipeline.weights.delta import TensorBuffer
from pipeline.weights.dtypes import ITEM_BYTES
from schemas.errors import WeightsError
from schemas.records import TensorEntry


@dataclass(frozen=True, kw_only=True, eq=False)
class WireState:
    """See the module."""

    entries: tuple[TensorEntry, ...]
    buffers: tuple[TensorBuffer, ...]

    @classmethod
    def empty(cls, entries: tuple[TensorEntry, ...]) -> WireState:
        """Memory for these tensors, not yet filled."""
        require_little_endian()
        buffers = (TensorBuffer(data=np.empty(e.num_bytes, np.uint8), item_bytes=ITEM_BYTES[e.dtype]) for e in entries)
        return cls(entries=entries, buffers=tuple(buffers))

    @classmethod
    def over(cls, entries: tuple[TensorEntry, ...], tensors: Mapping[str, object]) -> WireState:
        """The memory of the tensors themselves, not a copy: CPU torch tensors or numpy arrays in the wire's dtypes.

        Raises:
            WeightsError: one is absent, or its memory is not what the entry says.
        """
        require_little_endian()
        buffers = []
        for entry in entries:
            data = np.empty(0, np.uint8) if entry.tied_to is not None else raw_bytes(tensors.get(entry.name))
            if data.size != entry.num_bytes:
                raise WeightsError(f"tensor {entry.name!r} has {data.size} bytes in memory, not {entry.num_bytes}")
            buffers.append(TensorBuffer(data=data, item_bytes=ITEM_BYTES[entry.dtype]))
        return cls(entries=entries, buffers=tuple(buffers))

    def fill(self, tensors: Mapping[str, Array]) -> None:
        """Copy these tensors, cast to the dtypes of the entries: the one moment in which they must not change.

        Raises:
            WeightsError: numpy cannot hold a dtype.
        """
        for entry, buffer in zip(self.entries, self.buffers, strict=True):
            if entry.tied_to is not None:
                continue
            at = 0
            for piece in pieces(tensors[entry.name], dtype=entry.dtype):
                buffer.data[at : at + len(piece)] = piece
                at += len(piece)

    def digest(self) -> str:
        """blake3 over the canonical stream."""
        hasher = blake3()
        for buffer in self.buffers:
            hasher.update(buffer.data.data)
        return hasher.hexdigest()

    @property
    def num_bytes(self) -> int:
        """Length of the canonical stream."""
        return sum(entry.num_bytes for entry in self.entries)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(elements, bytes of one) of every tensor."""
        return tuple((buffer.data.size // buffer.item_bytes, buffer.item_bytes) for buffer in self.buffers)
