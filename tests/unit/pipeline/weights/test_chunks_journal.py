"""The journal of a chunk store: what came is read once and in order, and who missed some is told to look."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from pipeline.weights.chunks import ChunkStore, stores_in
from pipeline.weights.journal import JOURNAL, LINE_BYTES, JournalReader, Journals
from tests.unit.pipeline.weights.helpers import new_store


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


def _reader(store: ChunkStore) -> JournalReader:
    """One that has seen everything so far."""
    reader = JournalReader(store.root)
    reader.poll()
    return reader


def test_chunks_are_read_once_and_in_the_order_in_which_they_came(store: ChunkStore) -> None:
    store.put(b"before")
    reader = _reader(store)
    came = [store.put(bytes([n])).digest for n in range(3)]
    assert (reader.poll(), reader.poll()) == ((came, False), ([], False))


def test_a_chunk_that_is_there_already_is_no_news(store: ChunkStore) -> None:
    store.put(b"abc")
    reader = _reader(store)
    store.put(b"abc")
    assert reader.poll() == ([], False)


def test_a_chunk_that_was_mended_is_news(store: ChunkStore) -> None:
    digest = store.put(b"abc").digest
    reader = _reader(store)
    store.path_of(digest).write_bytes(b"a")
    store.put(b"abc")
    assert reader.poll() == ([digest], False)


def test_the_first_look_at_a_journal_that_is_there_asks_to_look(store: ChunkStore) -> None:
    reader = JournalReader(store.root)
    assert reader.poll() == ([], False)
    store.put(b"abc")
    assert (reader.poll(), reader.poll()) == (([], True), ([], False))


def test_a_line_that_is_being_written_is_read_when_it_is_whole(store: ChunkStore) -> None:
    store.put(b"abc")
    reader = _reader(store)
    with (store.root / JOURNAL).open("a") as journal:
        journal.write("0" * 60)
        journal.flush()
        assert reader.poll() == ([], False)
        journal.write("0" * 4 + "\n")
    assert reader.poll() == (["0" * 64], False)


def test_a_line_that_is_none_is_left_out(store: ChunkStore) -> None:
    store.put(b"abc")
    reader = _reader(store)
    with (store.root / JOURNAL).open("a") as journal:
        journal.write("../../secret\n" + "0" * 64 + "\n")
    assert reader.poll() == (["0" * 64], False)


def test_a_journal_that_is_shorter_or_gone_or_another_asks_to_look(store: ChunkStore) -> None:
    store.put(b"abc")
    reader, path = _reader(store), store.root / JOURNAL
    path.write_bytes(b"")
    assert (reader.poll(), reader.poll()) == (([], True), ([], False))
    path.unlink()
    assert (reader.poll(), reader.poll()) == (([], True), ([], False))
    store.put(b"abd")
    assert (reader.poll(), reader.poll()) == (([], True), ([], False))


def test_sweep_cuts_a_journal_that_is_much_longer_than_the_store(store: ChunkStore) -> None:
    store.put(b"abc")
    path = store.root / JOURNAL
    path.write_bytes(b"x" * LINE_BYTES * 4096)
    reader = _reader(store)
    store.sweep()
    assert path.stat().st_size == LINE_BYTES * 4096
    with path.open("ab") as journal:
        journal.write(b"x")
    store.sweep()
    assert path.stat().st_size == 0
    assert reader.poll() == ([], True)
    assert reader.poll() == ([], False)
    digest = store.put(b"after").digest
    assert reader.poll() == ([digest], False)


def test_a_journal_that_cannot_be_written_does_not_keep_the_chunk_out(store: ChunkStore) -> None:
    store.put(b"abc")
    (store.root / JOURNAL).unlink()
    (store.root / JOURNAL).mkdir()
    assert store.has(store.put(b"abd").digest)


def test_the_journals_of_all_stores_are_read_also_of_new_ones(tmp_path: Path) -> None:
    journals = Journals(lambda: [store.root for store in stores_in(tmp_path)])
    assert journals.poll() == ([], False)
    first = new_store(tmp_path / "first")
    first.put(b"1")
    assert journals.poll() == ([], True)
    second = new_store(tmp_path / "second")
    second.put(b"2")
    digest = first.put(b"3").digest
    assert journals.poll() == ([digest], True)
    digests = {first.put(b"4").digest, second.put(b"5").digest}
    found, must_look = journals.poll()
    assert (set(found), must_look) == (digests, False)


def _put_many(root: Path, first: int, barrier: multiprocessing.synchronize.Barrier) -> None:
    store = ChunkStore(root, max_bytes=2**30)
    barrier.wait(60)
    for n in range(first, first + 200):
        store.put(n.to_bytes(4, "little"))


def test_processes_that_put_at_once_lose_no_line(store: ChunkStore) -> None:
    store.put(b"abc")
    reader = _reader(store)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_put_many, args=(store.root, first, barrier)) for first in (0, 1000)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    digests, must_look = reader.poll()
    assert (len(digests), len(set(digests)), must_look) == (400, 400, False)
    assert all(store.has(digest) for digest in digests)
