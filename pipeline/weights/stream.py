"""The canonical byte stream of a state, cut into chunks and put together again.

Role: between the tensors (`state`) and the chunks (`chunks`); knows no tensor library.
Data in and out: pieces of bytes of any length in stream order.
Invariants: one chunk is held in memory, never the stream; the stream's digest is computed in the same pass.
Failure: `WeightsError` when chunks are absent, altered, exchanged, or do not give the state's digest.
"""

from __future__ import annotations

from collections.abc import Iterator

from blake3 import blake3

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.files import BytesLike
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Manifest


class ChunkWriter:
    """Cuts a stream into chunks of `chunk_bytes`; only the last one is shorter."""

    def __init__(self, store: ChunkStore, *, chunk_bytes: int, owner: str | None = None) -> None:
        self._store = store
        self._owner = owner
        self._buffer = bytearray(chunk_bytes)
        self._used_bytes = 0
        self._hasher = blake3()
        self._chunks: list[ChunkRef] = []

    def write(self, data: BytesLike) -> None:
        """Append `data` (one-dimensional, of single bytes).

        Raises:
            WeightsError: the store is full.
        """
        view = memoryview(data)
        self._hasher.update(view)
        while view.nbytes > 0:
            end = min(self._used_bytes + view.nbytes, len(self._buffer))
            taken_bytes = end - self._used_bytes
            self._buffer[self._used_bytes : end] = view[:taken_bytes]
            self._used_bytes = end
            view = view[taken_bytes:]
            if end == len(self._buffer):
                self._flush()

    def finish(self) -> tuple[tuple[ChunkRef, ...], str]:
        """Store what is left; gives the chunks in stream order and the digest of the stream."""
        if self._used_bytes > 0:
            self._flush()
        return tuple(self._chunks), self._hasher.hexdigest()

    def _flush(self) -> None:
        piece = memoryview(self._buffer)[: self._used_bytes]
        self._chunks.append(self._store.put(piece, owner=self._owner))
        self._used_bytes = 0


class ChunkReader:
    """Reads the stream of a full anchor that passed `check_manifest`."""

    def __init__(self, manifest: Manifest, *, store: ChunkStore) -> None:
        self._manifest = manifest
        self._hasher = blake3()
        self._chunks = _verified_chunks(manifest, store=store)
        self._rest = memoryview(b"")

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes of the stream.

        Raises:
            WeightsError: a chunk is absent, altered or of another length.
        """
        while target.nbytes > 0:
            if self._rest.nbytes == 0:
                self._rest = self._next_chunk()
            taken_bytes = min(target.nbytes, self._rest.nbytes)
            target[:taken_bytes] = self._rest[:taken_bytes]
            target = target[taken_bytes:]
            self._rest = self._rest[taken_bytes:]

    def finish(self) -> None:
        """Check that the stream ended here and was the one the manifest names.

        Raises:
            WeightsError: bytes are left over, or the digest of the state differs.
        """
        left_bytes = self._rest.nbytes + sum(len(chunk) for chunk in self._chunks)
        if left_bytes > 0:
            raise _broken(self._manifest, f"{left_bytes} bytes are left after the last tensor")
        digest = self._hasher.hexdigest()
        if digest != self._manifest.state_digest:
            raise _broken(self._manifest, f"its chunks give state {digest}, not {self._manifest.state_digest}")

    def _next_chunk(self) -> memoryview:
        data = next(self._chunks, None)
        if data is None:
            raise _broken(self._manifest, "the chunks end before the last tensor")
        self._hasher.update(data)
        return memoryview(data)


def join_chunks(manifest: Manifest, *, store: ChunkStore) -> bytearray:
    """All bytes of the manifest's chunks, verified; for a delta, which is short.

    Raises:
        WeightsError: a chunk is absent, altered or of another length.
    """
    data = bytearray()
    for chunk in _verified_chunks(manifest, store=store):
        data += chunk
    return data


def _verified_chunks(manifest: Manifest, *, store: ChunkStore) -> Iterator[bytes]:
    for chunk in manifest.chunks:
        data = store.get(chunk.digest)
        if len(data) != chunk.num_bytes:
            raise _broken(manifest, f"chunk {chunk.digest} has {len(data)} bytes, not {chunk.num_bytes}")
        yield data


def _broken(manifest: Manifest, why: str) -> WeightsError:
    return WeightsError(f"version {manifest.version} cannot be decoded: {why}; it is not loaded")
