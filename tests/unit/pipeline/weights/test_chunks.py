"""The chunk store: names, verification, leases, sweeping, a full disk, two writers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.weights.chunks import ChunkStore, digest_of
from schemas.errors import ChunkMismatch, WeightsError
from tests.unit.pipeline.weights.helpers import new_store


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


def test_put_names_the_bytes_by_their_blake3_digest_and_get_gives_them_back(store: ChunkStore) -> None:
    ref = store.put(b"abc")
    assert ref.digest == "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    assert ref.num_bytes == 3
    assert store.get(ref.digest) == b"abc"


@pytest.mark.parametrize("data", [b"", bytearray(b"xy"), memoryview(b"xyz")])
def test_any_bytes_can_be_stored_twice(store: ChunkStore, data: bytes) -> None:
    assert store.put(data) == store.put(data)
    assert store.num_bytes() == len(data)


def test_bytes_that_do_not_have_the_expected_digest_are_not_stored(store: ChunkStore) -> None:
    with pytest.raises(ChunkMismatch, match="not stored"):
        store.put(b"abc", expect=digest_of(b"abd"))
    assert not store.has(digest_of(b"abc"))


def test_a_chunk_altered_on_disk_is_removed_and_reported(store: ChunkStore) -> None:
    ref = store.put(b"abcd")
    store.path_of(ref.digest).write_bytes(b"abce")
    assert store.has(ref.digest)
    with pytest.raises(WeightsError, match="altered on disk and has been removed"):
        store.get(ref.digest)
    with pytest.raises(WeightsError, match="is absent"):
        store.get(ref.digest)


def test_a_chunk_cut_short_on_disk_is_mended_by_the_next_put(store: ChunkStore) -> None:
    ref = store.put(b"abcd")
    store.path_of(ref.digest).write_bytes(b"ab")
    store.put(b"abcd")
    assert store.get(ref.digest) == b"abcd"


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 62 + "/x"])
def test_a_digest_that_could_leave_the_store_is_refused(store: ChunkStore, digest: str) -> None:
    for call in (store.path_of, store.has, store.get, store.verified):
        with pytest.raises(WeightsError, match="not 64 lower-case hex digits"):
            call(digest)


@pytest.mark.parametrize("owner", ["", "../x", "a/b", ".hidden", "x" * 129])
def test_an_owner_that_could_leave_the_store_is_refused(store: ChunkStore, owner: str) -> None:
    with pytest.raises(WeightsError, match="lease owner"):
        store.pin(owner, {"0" * 64})


def _aged(store: ChunkStore, data: bytes, *, age: int) -> str:
    digest = store.put(data).digest
    os.utime(store.path_of(digest), (1000 - age, 1000 - age))
    return digest


def test_sweep_removes_the_oldest_first_and_spares_pinned_and_kept_ones(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_bytes=30)
    pinned, kept, old, newer, newest = (_aged(store, bytes([n]) * 10, age=9 - n) for n in range(5))
    store.pin("learner.1.2", {pinned})
    assert store.sweep({kept}) == 20
    assert [store.has(d) for d in (pinned, kept, old, newer, newest)] == [True, True, False, False, True]
    store.unpin("learner.1.2")
    assert store.sweep() == 0  # not above the bound any more


def test_pins_of_several_owners_add_up_and_end_one_by_one(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_bytes=0)
    first, second = store.put(b"1").digest, store.put(b"2").digest
    store.pin("a", {first})
    store.pin("a", {second})
    store.pin("b", {first})
    store.unpin("a", {second})
    assert store.pins() == {"a": frozenset({first}), "b": frozenset({first})}
    store.unpin("a")
    store.sweep()
    assert (store.has(first), store.has(second)) == (True, False)


def test_a_put_with_an_owner_outlives_the_next_sweep(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_bytes=0)
    digest = store.put(b"abc", owner="me").digest
    store.sweep()
    assert store.has(digest)


def test_putting_a_chunk_again_makes_it_the_newest(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_bytes=3)
    again, other = _aged(store, b"old", age=2), _aged(store, b"new", age=1)
    store.put(b"old")
    store.sweep()
    assert (store.has(again), store.has(other)) == (True, False)


def test_sweep_removes_what_a_dead_writer_left(store: ChunkStore) -> None:
    store.put(b"abc")
    (store.root / "tmp" / "left").write_bytes(b"x")
    store.sweep()
    assert list((store.root / "tmp").iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_a_clear_error_and_leaves_nothing_behind(tiny_disk: Path) -> None:
    store = new_store(tiny_disk)
    small = store.put(b"abc")
    with pytest.raises(WeightsError, match=r"no space left for 1000000 bytes .* not stored"):
        store.put(bytes(1_000_000))
    assert list((tiny_disk / "tmp").iterdir()) == []
    assert store.get(small.digest) == b"abc"


def _put_many(root: Path, barrier: multiprocessing.synchronize.Barrier) -> None:
    store = new_store(root, max_bytes=0)
    barrier.wait(30)
    for number in range(100):
        digest = store.put(number.to_bytes(2, "big") * 500, owner=f"writer-{os.getpid()}").digest
        store.sweep()
        store.get(digest)


def test_two_processes_may_write_and_sweep_one_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    writers = [context.Process(target=_put_many, args=(tmp_path, barrier)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    store = new_store(tmp_path)
    contents = [number.to_bytes(2, "big") * 500 for number in range(100)]
    assert [store.get(digest_of(content)) for content in contents] == contents
    assert list((tmp_path / "tmp").iterdir()) == []
