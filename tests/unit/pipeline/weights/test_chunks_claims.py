"""Claims: no two fetch a chunk at once, and a claim ends with its process."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from pipeline.weights.chunks import ChunkStore, digest_of
from schemas.errors import WeightsError
from tests.unit.pipeline.weights.helpers import new_store

_A, _B = digest_of(b"a"), digest_of(b"b")


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


def test_a_chunk_is_claimed_by_one_at_a_time_and_others_are_free(store: ChunkStore) -> None:
    with store.claim(_A) as first, store.claim(_A) as second, store.claim(_B) as other:
        assert (first, second, other) == (True, False, True)
    with store.claim(_A) as again:
        assert again


def test_a_refused_claim_does_not_end_the_one_that_holds(store: ChunkStore) -> None:
    with store.claim(_A) as first:
        for _ in range(2):
            with store.claim(_A) as second:
                assert (first, second) == (True, False)


def test_chunks_whose_digests_begin_alike_are_claimed_apart(store: ChunkStore) -> None:
    with store.claim("0" * 64) as first, store.claim("0" * 14 + "1" + "0" * 49) as second:
        assert first
        assert second


def test_claims_leave_one_empty_file(store: ChunkStore) -> None:
    for n in range(100):
        with store.claim(digest_of(bytes([n]))):
            pass
    assert [(path.name, path.stat().st_size) for path in store.root.iterdir()] == [("claims", 0)]


def test_a_digest_that_is_none_is_refused(store: ChunkStore) -> None:
    with pytest.raises(WeightsError, match="64 lower-case hex digits"):
        store.claim("../x")


def _hold(root: Path, held: multiprocessing.synchronize.Event, let_go: multiprocessing.synchronize.Event) -> None:
    with ChunkStore(root, max_bytes=0).claim(_A) as ours:
        assert ours
        held.set()
        let_go.wait(600)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_claim_of_another_process_holds_until_it_ends_or_is_killed(store: ChunkStore, is_killed: bool) -> None:
    context = multiprocessing.get_context("spawn")
    held, let_go = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(store.root, held, let_go))
    process.start()
    assert held.wait(60)
    with store.claim(_A) as ours, store.claim(_B) as other:
        assert (ours, other) == (False, True)
    if is_killed:
        process.kill()
    else:
        let_go.set()
    process.join(30)
    end_s = time.monotonic() + 10  # the system closes the files of a killed process a moment later
    while time.monotonic() < end_s:
        with store.claim(_A) as ours:
            if ours:
                return
    raise AssertionError("the claim outlived its process")
