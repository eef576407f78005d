"""A published version as a model directory for `from_pretrained` and vLLM.

Role: behind `rlweave export`.
Data in: manifests, chunks of the run's stores or peers, the model directory the run began with. Data out: a directory:
that one's files without its weights, `model.safetensors`, and `rlweave.json` saying what it is. Adapters, of
`[learner.lora]`, are merged into that directory's weights, or written as they are for `peft`.
The file holds the canonical stream as it is, behind a header (https://github.com/huggingface/safetensors#format), so
every dtype is carried bit for bit, and no tensor library is needed unless adapters are merged. Tied tensors are left
out, as by `save_pretrained`.
Invariants: the directory appears whole, after the weights were read back and gave the manifest's digest.
Failure: `WeightsError`, and nothing is left behind.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import unpack

import orjson
from blake3 import blake3

from ops.export_adapters import (
    ADAPTER_FILE,
    CONFIG_FILE,
    adapter_config,
    adapter_header,
    check_is_adapter,
    merged,
)
from ops.replay.sources import Source, decode
from pipeline.model_folder import WEIGHTS_FILE, copy_model_files, safetensors_header, say_dtype
from pipeline.settings import WeightsSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import fetch
from pipeline.weights.held import HeldState
from pipeline.weights.listing import open_listing, parts_of
from pipeline.weights.route import Route, find_route
from pipeline.weights.state import decode_raw
from pipeline.weights.tls import client_context
from pipeline.weights.tokens import run_token
from pipeline.weights.wire_state import WireState
from schemas.errors import CodecError, WeightsError
from schemas.records import Manifest, Version
from topics.catalog import WEIGHTS
from topics.clock import Deadline

FETCH_LIMIT_S = 600.0
_STORE_MAX_BYTES = 2**62  # nothing is swept here
_READ_BYTES = 2**22


@dataclass(frozen=True, kw_only=True)
class ExportForm:
    """What of a version is written.

    Attributes:
        adapter: the adapters alone, as a folder for `peft`; else the whole model.
        dtype: in which engines hold the base that adapters are merged into.
    """

    adapter: bool = False
    dtype: str = "float32"


DEFAULT_FORM = ExportForm()


def published_versions(source: Source) -> dict[Version, Manifest]:
    """Manifests on the `weights` topic that have no tombstone."""
    found: dict[bytes, Manifest] = {}
    for record in source.read(WEIGHTS, source.window(WEIGHTS)):
        key = record.key if record.key is not None else b""
        if record.value is None:
            found.pop(key, None)
            continue
        try:
            decoded = decode(WEIGHTS, record)
        except CodecError:
            continue
        if isinstance(decoded, Manifest):
            found[key] = decoded
    return {manifest.version: manifest for manifest in found.values()}


def export_version(
    published: Mapping[Version, Manifest],
    version: Version | None,
    *,
    target: Path,
    model: Path,
    folder: Path,
    weights: WeightsSettings | None = None,
    form: ExportForm = DEFAULT_FORM,
) -> Manifest:
    """Write a version as a model directory, or its adapters as a folder for `peft`.

    Args:
        published: all that are listed.
        version: which one; None: the newest.
        target: must not exist, or be empty.
        model: directory the run began with.
        folder: of the run: its chunk stores.
        weights: how peers are asked; None: with the folder's token.
        form: what to write.

    Raises:
        WeightsError: no such version, no adapters where they are asked for, its bytes are nowhere, or a directory is
            at fault.
    """
    manifest = _choose(published, version)
    _check_places(target, model=model)
    if form.adapter:
        check_is_adapter(manifest)
    settings = WeightsSettings() if weights is None else weights
    manifest, state = _assemble(manifest, published=published, folder=folder, weights=settings)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        if form.adapter:
            _write_adapter(aside, manifest, state=state, model=model)
        else:
            whole = merged(manifest, state, model=model, dtype=form.dtype)
            _write_model(aside, manifest, state=whole, model=model)
        (aside / "rlweave.json").write_bytes(orjson.dumps(_origin(manifest), option=orjson.OPT_INDENT_2))
        if target.is_dir():
            target.rmdir()  # it is empty
        aside.replace(target)
    except OSError as error:
        raise WeightsError(f"{target} cannot be written: {error}; nothing was exported") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return manifest


def _choose(published: Mapping[Version, Manifest], version: Version | None) -> Manifest:
    if not published:
        raise WeightsError("no version is published; nothing was exported")
    chosen = max(published) if version is None else version
    if chosen not in published:
        raise WeightsError(
            f"version {chosen} is not published, or not any more; nothing was exported",
            hint=f"published are {', '.join(map(str, sorted(published)))}; weights.keep_versions says how many stay",
        )
    return published[chosen]


def _check_places(target: Path, *, model: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise WeightsError(f"{target} is there already; nothing was exported", hint="name a directory that is not")
    if not (model / "config.json").is_file():
        raise WeightsError(f"the run's model directory {model} has no config.json; nothing was exported")


def _assemble(
    manifest: Manifest, *, published: Mapping[Version, Manifest], folder: Path, weights: WeightsSettings
) -> tuple[Manifest, WireState]:
    """The version's manifest, opened, and its bytes, verified."""
    route = find_route(manifest, published=published, held_digest=None)
    store = next((store for store in _stores(folder) if _has_all(store, route)), None)
    if store is None:
        store = ChunkStore(folder / "weights" / "export", max_bytes=_STORE_MAX_BYTES)
        client = ClientSettings(
            token=run_token(folder, token_file=weights.token_file), tls=client_context(ca=weights.tls_ca)
        )
        deadline = Deadline.after(FETCH_LIMIT_S)
        for part in parts_of(route, store=store):
            fetch(part, store=store, client=client, deadline=deadline)
    held = HeldState(decode_raw)
    tensors = held.advance(manifest, route, store=store)
    opened = open_listing(manifest, store=store)
    return opened, WireState.over(opened.tensors, tensors)


def _stores(folder: Path) -> Iterator[ChunkStore]:
    for path in sorted((folder / "weights").glob("*/chunks")):
        yield ChunkStore(path.parent, max_bytes=_STORE_MAX_BYTES)


def _has_all(store: ChunkStore, route: Route) -> bool:
    return all(store.verified(chunk.digest) for part in parts_of(route, store=store) for chunk in part.chunks)


def _write_model(folder: Path, manifest: Manifest, *, state: WireState, model: Path) -> None:
    copy_model_files(model, folder)
    say_dtype(folder / "config.json", {entry.dtype for entry in state.entries})
    entries = {entry.name: (entry.dtype, entry.shape) for entry in state.entries if entry.tied_to is None}
    _write_weights(folder / WEIGHTS_FILE, state, header=safetensors_header(entries))
    digest = manifest.state_digest if manifest.adapter is None else manifest.adapter.merged_digest
    _verify(folder / WEIGHTS_FILE, digest, version=manifest.version)


def _write_adapter(folder: Path, manifest: Manifest, *, state: WireState, model: Path) -> None:
    folder.mkdir(parents=True)
    _write_weights(folder / ADAPTER_FILE, state, header=adapter_header(state))
    _verify(folder / ADAPTER_FILE, manifest.state_digest, version=manifest.version)
    (folder / CONFIG_FILE).write_bytes(adapter_config(manifest, model=model))


def _write_weights(path: Path, state: WireState, *, header: bytes) -> None:
    with path.open("wb") as file:
        file.write(header)
        for buffer in state.buffers:
            file.write(buffer.data.data)


def _verify(path: Path, digest: str, *, version: Version) -> None:
    """What is on the disk is the state that the manifest names."""
    hasher = blake3()
    with path.open("rb") as file:
        (header_bytes,) = unpack("<Q", file.read(8))
        file.seek(8 + header_bytes)
        while piece := file.read(_READ_BYTES):
            hasher.update(piece)
    if hasher.hexdigest() != digest:
        raise WeightsError(
            f"{path.name} came out as state {hasher.hexdigest()}, version {version} is {digest}; nothing was exported"
        )


def _origin(manifest: Manifest) -> dict[str, str]:
    found = {"run": manifest.run, "version": str(manifest.version), "state_digest": manifest.state_digest}
    if manifest.adapter is not None:
        found |= {"base_digest": manifest.adapter.base_digest, "merged_digest": manifest.adapter.merged_digest}
    return found
