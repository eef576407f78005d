"""A manifest that is too large for a record, as chunks of its own.

Role: a state of many chunks (35,000 of 4 MiB for 70 billion parameters in bf16) has a manifest of megabytes. Every
stage that follows `weights` reads all manifests from the first on and holds them, so the record stays small: it names
version, base, digests and sizes, and the chunks of the *listing*, the whole manifest as an ordinary frame. An engine
fetches the listing like any other chunks, then what it lists.
Data in and out: manifests; chunks in the store.
Invariants: a listing is believed only after each of its chunks has the digest that the record names, it decodes to its
last byte, says the same as the record of everything that the record says, and passes `check_manifest` by itself.
Failure: `WeightsError`; the version is not loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.manifest import (
    LISTING,
    MAX_LISTING_BYTES,
    as_anchor,
    as_delta,
    check_manifest,
    transfer_bytes,
)
from pipeline.weights.route import Route
from pipeline.weights.stream import ChunkWriter, join_chunks
from schemas.codec import decode, encode
from schemas.errors import CodecError, WeightsError
from schemas.records import Manifest

# What a broker takes by its defaults, and what each reader can hold of every listed version.
MAX_INLINE_BYTES = 2**20


def set_apart(manifest: Manifest, *, target: StoreTarget) -> Manifest:
    """What goes on the topic for a manifest that passed `check_manifest`: itself, or a record with a listing in the
    store when its frame is longer than `MAX_INLINE_BYTES`.

    Raises:
        WeightsError: the store is full, or the listing is over its bound.
    """
    frame = encode(manifest)
    if len(frame) <= MAX_INLINE_BYTES:
        return manifest
    if len(frame) > MAX_LISTING_BYTES:
        raise WeightsError(
            f"the manifest of version {manifest.version} has {len(manifest.tensors)} tensors and "
            f"{len(manifest.chunks)} chunks and takes {len(frame)} bytes, at most {MAX_LISTING_BYTES} are allowed; it "
            "is not published",
            hint="raise weights.chunk_bytes",
        )
    writer = ChunkWriter(target.store, chunk_bytes=target.chunk_bytes, owner=target.owner)
    writer.write(frame)
    delta = as_delta(manifest)
    listing, _ = writer.finish()
    delta_bytes = 0 if delta is None else transfer_bytes(delta)
    return replace(manifest, tensors=(), chunks=(), delta_chunks=(), listing=listing, delta_bytes=delta_bytes)


def listing_of(manifest: Manifest) -> Manifest | None:
    """A manifest of the listing's chunks alone, to be fetched as any other; None: it has no listing."""
    if not manifest.listing:
        return None
    plain = replace(manifest, encoding=LISTING, base=None, base_digest=None, num_bytes=0, delta_bytes=0)
    return replace(plain, tensors=(), chunks=manifest.listing, delta_chunks=(), listing=())


def open_listing(manifest: Manifest, *, store: ChunkStore) -> Manifest:
    """The manifest with its tensors and chunks; one without a listing as it is.

    Raises:
        WeightsError: the listing is absent, altered, no manifest, or says something else than the record.
    """
    if not manifest.listing:
        return manifest
    check_manifest(manifest)
    plain = listing_of(manifest)
    data = b"" if plain is None else bytes(join_chunks(plain, store=store))
    try:
        whole = decode(data, Manifest)
    except CodecError as error:
        raise _differs(manifest, f"it cannot be decoded: {error.message}") from error
    if whole.listing:
        raise _differs(manifest, "it is a listing of a listing")
    for view in (whole, as_delta(whole), as_anchor(whole)):
        if view is not None and _as_record(view, manifest) == manifest:
            opened = replace(view, seeds=manifest.seeds, created_unix_ms=manifest.created_unix_ms)
            check_manifest(opened)
            return opened
    raise _differs(manifest, "it names another run, version, base, digest or size")


def open_route(route: Route, *, store: ChunkStore) -> Route:
    """The route with every manifest opened.

    Raises:
        WeightsError: as `open_listing`.
    """
    anchor = None if route.anchor is None else open_listing(route.anchor, store=store)
    return Route(anchor=anchor, deltas=tuple(open_listing(delta, store=store) for delta in route.deltas))


def parts_of(route: Route, *, store: ChunkStore) -> Iterator[Manifest]:
    """What to fetch, one after the other. Take the next one when the chunks of the one before are in the store: a
    listing comes before what it lists.

    Raises:
        WeightsError: as `open_listing`.
    """
    for manifest in route.manifests:
        listing = listing_of(manifest)
        if listing is not None:
            yield listing
        yield open_listing(manifest, store=store)


def _as_record(view: Manifest, record: Manifest) -> Manifest:
    """What the record of this manifest would be."""
    delta_bytes = 0 if view.base is None else sum(chunk.num_bytes for chunk in view.delta_chunks or view.chunks)
    return replace(
        view,
        tensors=(),
        chunks=(),
        delta_chunks=(),
        listing=record.listing,
        delta_bytes=delta_bytes,
        seeds=record.seeds,
        created_unix_ms=record.created_unix_ms,
    )


def _differs(manifest: Manifest, why: str) -> WeightsError:
    return WeightsError(f"the listing of version {manifest.version} does not fit its record: {why}; it is not loaded")
