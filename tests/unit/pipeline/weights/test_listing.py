"""Manifests that are listed apart: what goes into the record, what is believed of a listing, sizes of large models."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.weights import listing
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import fetch
from pipeline.weights.held import HeldState
from pipeline.weights.listing import MAX_INLINE_BYTES, listing_of, open_listing, parts_of, set_apart
from pipeline.weights.manifest import (
    BaseRef,
    EncodedState,
    all_chunks,
    as_anchor,
    as_delta,
    build_manifest,
    check_manifest,
    transfer_bytes,
)
from pipeline.weights.route import find_route
from pipeline.weights.state import decode_arrays
from schemas.codec import decode, encode
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Manifest, TensorEntry, Version
from tests.unit.pipeline.weights.helpers import TOKEN, honest_peer, new_store, small_version
from topics.clock import Deadline

Change = Callable[[Manifest], Manifest]


def large_manifest(*, delta_chunks: int = 500) -> Manifest:
    """70 billion parameters in bf16 at 4 MiB: 35,000 chunks, and a delta of 2 GB."""
    rng = np.random.default_rng(0)
    num_tensors, shape = 720, (8192, 11_776)
    num_bytes = num_tensors * 2 * shape[0] * shape[1]
    tensors = tuple(
        TensorEntry(
            name=f"model.layers.{number:04d}.mlp.up_proj.weight",
            dtype="BF16",
            shape=shape,
            num_bytes=num_bytes // num_tensors,
        )
        for number in range(num_tensors)
    )
    return build_manifest(
        EncodedState(
            tensors=tensors,
            chunks=_chunks(rng, total_bytes=num_bytes),
            state_digest="ab" * 32,
            num_bytes=num_bytes,
        ),
        run="r",
        version=Version(lineage=1, step=20),
        seeds=("http://127.0.0.1:1",),
        created_unix_ms=7,
        delta=BaseRef(
            version=Version(lineage=1, step=19),
            state_digest="cd" * 32,
            chunks=_chunks(rng, total_bytes=delta_chunks * 4 * 2**20 - 5),
        ),
    )


def _chunks(rng: np.random.Generator, *, total_bytes: int) -> tuple[ChunkRef, ...]:
    size = 4 * 2**20
    sizes = [size] * (total_bytes // size) + ([total_bytes % size] if total_bytes % size else [])
    return tuple(ChunkRef(digest=rng.bytes(32).hex(), num_bytes=each) for each in sizes)


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is too large for a record."""
    monkeypatch.setattr(listing, "MAX_INLINE_BYTES", 10)


def target(store: ChunkStore, *, chunk_bytes: int = 4 * 2**20) -> StoreTarget:
    return StoreTarget(store=store, chunk_bytes=chunk_bytes, owner="learner")


def test_a_manifest_that_fits_a_record_is_one(store: ChunkStore) -> None:
    manifest = small_version(store)
    assert set_apart(manifest, target=target(store)) is manifest
    assert open_listing(manifest, store=store) is manifest
    assert listing_of(manifest) is None


def test_70_billion_parameters(store: ChunkStore) -> None:
    """The record is small, nothing is lost on the way, and none of it takes long."""
    whole = large_manifest()
    assert len(whole.chunks) > 33_000
    began_s = time.thread_time()
    record = set_apart(whole, target=target(store))
    apart_s = time.thread_time() - began_s
    frame = encode(record)
    assert len(encode(whole)) > 2 * MAX_INLINE_BYTES
    assert len(frame) < 500
    assert store.pins()["learner"] == {chunk.digest for chunk in record.listing}
    received = decode(frame, Manifest)
    began_s = time.thread_time()
    opened = open_listing(received, store=store)
    open_s = time.thread_time() - began_s
    assert opened == whole
    print(f"{sum(chunk.num_bytes for chunk in record.listing)} bytes: apart {apart_s:.3f} s, opened {open_s:.3f} s")
    assert apart_s < 20, "0.1 s on an idle machine"
    assert open_s < 20, "0.3 s on an idle machine; minutes where each chunk looks at all others"


def test_routes_are_planned_without_opening(store: ChunkStore) -> None:
    """Sizes are in the record: the delta of 2 GB is taken where its base is held, the anchor where it is not."""
    whole = large_manifest()
    record = set_apart(whole, target=target(store))
    listing_bytes = sum(chunk.num_bytes for chunk in record.listing)
    near = find_route(record, published={}, held_digest="cd" * 32)
    far = find_route(record, published={}, held_digest="ef" * 32)
    assert (near.anchor, len(near.deltas), len(far.deltas)) == (None, 1, 0)
    assert near.num_bytes == 500 * 4 * 2**20 - 5 + listing_bytes
    assert far.num_bytes == whole.num_bytes + listing_bytes
    assert open_listing(near.deltas[0], store=store) == as_delta(whole)
    anchor = far.anchor
    assert anchor is not None
    assert open_listing(anchor, store=store) == as_anchor(whole)
    assert transfer_bytes(as_anchor(whole) or whole) == whole.num_bytes
    long = set_apart(large_manifest(delta_chunks=33_000), target=target(store))
    assert find_route(long, published={}, held_digest="cd" * 32).anchor is None


@pytest.mark.usefixtures("apart")
def test_seeds_are_those_of_the_record(store: ChunkStore) -> None:
    """A peer that was restarted elsewhere is named by a later record over the same listing."""
    manifest = small_version(store, seeds=("http://127.0.0.1:1",))
    record = replace(set_apart(manifest, target=target(store)), seeds=("http://127.0.0.1:2",), created_unix_ms=9)
    opened = open_listing(record, store=store)
    assert (opened.seeds, opened.created_unix_ms) == (("http://127.0.0.1:2",), 9)
    assert opened.chunks == manifest.chunks


@pytest.mark.usefixtures("apart")
def test_a_version_is_fetched_listing_first(tmp_path: Path) -> None:
    there, here = new_store(tmp_path / "there"), new_store(tmp_path / "here")
    with honest_peer(there) as url:
        whole = small_version(there, seeds=(url,))
        record = set_apart(whole, target=target(there, chunk_bytes=500))
        route = find_route(record, published={}, held_digest=None)
        parts = []
        for part in parts_of(route, store=here):
            fetch(part, store=here, client=ClientSettings(token=TOKEN), deadline=Deadline.after(10))
            parts.append(part)
    assert [part.chunks for part in parts] == [record.listing, whole.chunks]
    state = HeldState(decode_arrays).advance(record, route, store=here)
    assert np.array_equal(np.asarray(state["a"]), np.asarray(decode_arrays(whole, there)["a"]))


@pytest.mark.usefixtures("apart")
def test_what_was_not_fetched_leaves_the_held_state_as_it_was(tmp_path: Path) -> None:
    there, here = new_store(tmp_path / "there"), new_store(tmp_path / "here")
    whole = small_version(there)
    held = HeldState(decode_arrays)
    held.advance(whole, find_route(whole, published={}, held_digest=None), store=there)
    record = set_apart(whole, target=target(there))
    with pytest.raises(WeightsError, match="is absent"):
        held.advance(record, find_route(record, published={}, held_digest=None), store=here)
    assert held.digest == whole.state_digest


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: replace(m, run="other"), "names another run, version, base, digest or size"),
        (lambda m: replace(m, version=Version(lineage=9, step=9)), "names another"),
        (lambda m: replace(m, state_digest="00" * 32), "names another"),
        (lambda m: replace(m, num_bytes=m.num_bytes + 1), "names another"),
        (lambda m: replace(m, listing=m.listing[:-1]), "cannot be decoded"),
        (lambda m: replace(m, listing=(m.listing[1], m.listing[0], *m.listing[2:])), "cannot be decoded|differ"),
        (lambda m: replace(m, listing=()), "its 0 chunks|add up to 0 bytes"),
    ],
)
def test_a_record_that_says_something_else(store: ChunkStore, change: Change, why: str) -> None:
    record = change(set_apart(small_version(store), target=target(store, chunk_bytes=300)))
    with pytest.raises(WeightsError, match=why):
        check_manifest(open_listing(record, store=store))


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("damage", ["bit", "cut", "absent", "exchanged"])
def test_a_damaged_listing_is_not_opened(store: ChunkStore, damage: str) -> None:
    record = set_apart(small_version(store), target=target(store, chunk_bytes=300))
    path = store.path_of(record.listing[0].digest)
    data = path.read_bytes()
    path.unlink()
    if damage != "absent":
        other = store.path_of(record.listing[1].digest).read_bytes()
        path.write_bytes({"bit": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "exchanged": other}[damage])
    with pytest.raises(WeightsError, match="absent" if damage == "absent" else "altered"):
        open_listing(record, store=store)


@pytest.mark.usefixtures("apart")
def test_chunks_that_are_no_listing(store: ChunkStore) -> None:
    """Right digests over bytes that a publisher should never have listed."""
    manifest = small_version(store)
    record = set_apart(manifest, target=target(store))
    # An array that claims 2**40 tensors, and one that claims what it has.
    head = encode(replace(manifest, tensors=(), chunks=()))
    place = head.index(b"\x08full") + 5
    for data in (
        b"no frame at all",
        head[:place] + b"\x80\x80\x80\x80\x80\x80\x20" + head[place + 1 :],
        encode(record),
        encode(replace(manifest, chunks=manifest.chunks[:-1])),
    ):
        wrong = replace(record, listing=(store.put(data),))
        with pytest.raises(WeightsError, match=r"does not fit its record|its 9 chunks add up"):
            open_listing(wrong, store=store)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: replace(m, chunks=m.listing), "there and nowhere else"),
        (lambda m: replace(m, encoding="listing"), "there and nowhere else"),
        (lambda m: replace(m, listing=(ChunkRef(digest="ab" * 32, num_bytes=2**25),)), "a listing of 33554432 bytes"),
        (lambda m: replace(m, listing=(ChunkRef(digest="../x", num_bytes=5),)), "not 64 lower-case"),
        (lambda m: replace(m, delta_bytes=5), "names its base"),
        (lambda m: replace(m, base=Version(lineage=1, step=1)), "has no base"),
        (lambda m: replace(m, encoding="delta"), "names its base"),
        (lambda m: replace(m, num_bytes=0), "a state of 0 bytes"),
    ],
)
def test_a_record_that_contradicts_itself(store: ChunkStore, change: Change, why: str) -> None:
    record = set_apart(small_version(store), target=target(store))
    check_manifest(record)
    with pytest.raises(WeightsError, match=why):
        check_manifest(change(record))


def test_a_listing_alone_is_fetched_and_never_loaded(store: ChunkStore) -> None:
    record = set_apart(large_manifest(), target=target(store))
    alone = listing_of(record)
    assert alone is not None
    check_manifest(alone)
    assert all_chunks(alone) == record.listing == all_chunks(record)
    with pytest.raises(WeightsError, match="left after the last tensor"):
        decode_arrays(alone, store)
    with pytest.raises(WeightsError, match="neither an anchor"):
        find_route(alone, published={}, held_digest=None)


def test_a_listing_over_its_bound_is_not_published(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LISTING_BYTES", MAX_INLINE_BYTES)
    with pytest.raises(WeightsError, match="takes 2") as caught:
        set_apart(large_manifest(), target=target(store))
    assert caught.value.hint == "raise weights.chunk_bytes"
    assert store.num_bytes() == 0
