"""Chunks of a version out of a model directory's own files, in place of the network.

Role: engines begin with the files that the learner began with, so the first version is often on their disk already.
`seed_store` puts it into the host's store; the fetch after it then finds nothing to ask for, and the base of the first
delta is that same state, by digest.
Data in: a model directory, the manifest of a full anchor. Data out: chunks in the store.
Invariants: only chunks with the digest that the manifest names are stored, so a wrong guess costs time and nothing
else; True means that the files, cast to the dtypes of the wire, are the state that the manifest names.
Cost: names, shapes and dtypes come from the headers; files that differ are found out at their first differing chunk,
which for trained weights is the first one. Files that agree are read once, cast, hashed twice (chunk and state) and
written once (about 0.5 GB per processor second). One chunk is held in memory.
Failure: files that are absent, unreadable or of other names or shapes give False; `WeightsError` for a full store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import orjson
from blake3 import blake3

from pipeline.weights.arrays import pieces, require_little_endian
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.dtypes import FLOATS
from pipeline.weights.manifest import check_manifest
from schemas.errors import ChunkMismatch
from schemas.records import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

_WHOLE_FILE, _INDEX_FILE = "model.safetensors", "model.safetensors.index.json"  # which one a loader looks for first


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _File(Protocol):
    """An open safetensors file, which is untyped there."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


def seed_store(model_dir: Path, manifest: Manifest, *, store: ChunkStore, owner: str | None = None) -> bool:
    """Put the chunks of a version into `store` from the files of a model directory, if that is what they hold.

    Args:
        model_dir: of a `transformers` model: `model.safetensors`, or the files of its index.
        manifest: a full anchor, opened (`pipeline.weights.listing`); anything else gives False.
        owner: lease that pins the chunks.

    Returns:
        Whether the files are this version and all of its chunks are in the store.

    Raises:
        WeightsError: the manifest contradicts itself, or the store is full.
    """
    if manifest.encoding != "full" or manifest.listing:
        return False
    check_manifest(manifest)
    require_little_endian()
    with ExitStack() as opened:
        files = _open(model_dir, opened)
        sources = _sources(manifest.tensors, files)
        if sources is None:
            return False
        if owner is not None:
            store.pin(owner, {chunk.digest for chunk in manifest.chunks})
        return _copy(manifest, sources, store=store)


def _open(model_dir: Path, opened: ExitStack) -> Mapping[str, _File]:
    """Tensor name -> the file it is in; empty when something cannot be read."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - brings torch

    found: dict[str, _File] = {}
    try:
        for path in _paths(model_dir):
            file = cast("_File", opened.enter_context(safe_open(path, framework="pt", device="cpu")))
            found.update(dict.fromkeys(file.keys(), file))
    except (OSError, SafetensorError):
        return {}
    return found


def _paths(model_dir: Path) -> list[Path]:
    if (model_dir / _WHOLE_FILE).is_file():
        return [model_dir / _WHOLE_FILE]
    try:
        index: object = orjson.loads((model_dir / _INDEX_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []
    places: object = index.get("weight_map") if isinstance(index, dict) else None
    names = {name for name in places.values() if isinstance(name, str)} if isinstance(places, dict) else set()
    return [model_dir / name for name in sorted(names) if Path(name).name == name]


def _sources(
    entries: tuple[TensorEntry, ...], files: Mapping[str, _File]
) -> list[tuple[TensorEntry, str, _File]] | None:
    """Where the bytes of each tensor that has some are, in stream order; None: not all of them are there.

    Of tied tensors a directory keeps one, under either name.
    """
    names: dict[str, list[str]] = {entry.name: [entry.name] for entry in entries if entry.tied_to is None}
    for entry in entries:
        if entry.tied_to is not None:
            names[entry.tied_to].append(entry.name)
    sources = []
    for entry in entries:
        if entry.num_bytes == 0:
            continue
        name = next((name for name in names[entry.name] if name in files), None)
        if name is None or not _fits(entry, files[name].get_slice(name)):
            return None
        sources.append((entry, name, files[name]))
    return sources


def _fits(entry: TensorEntry, found: _Slice) -> bool:
    """Same shape, and the same dtype or one that a cast between floating types leads from."""
    dtype = found.get_dtype()
    castable = dtype in FLOATS and entry.dtype in FLOATS
    return tuple(found.get_shape()) == entry.shape and (castable or dtype == entry.dtype)


def _copy(manifest: Manifest, sources: list[tuple[TensorEntry, str, _File]], *, store: ChunkStore) -> bool:
    state = blake3()
    stream = _stream(sources)
    rest = memoryview(b"")
    for chunk in manifest.chunks:
        data = bytearray()
        while len(data) < chunk.num_bytes:
            rest = rest if rest.nbytes else next(stream)
            taken = rest[: chunk.num_bytes - len(data)]
            data += taken
            rest = rest[len(taken) :]
        try:
            store.put(data, expect=chunk.digest)
        except ChunkMismatch:
            return False
        state.update(data)
    return state.hexdigest() == manifest.state_digest


def _stream(sources: list[tuple[TensorEntry, str, _File]]) -> Iterator[memoryview]:
    """The canonical stream; as long as the manifest says, since every shape was compared."""
    for entry, name, file in sources:
        yield from pieces(file.get_tensor(name), dtype=entry.dtype)
