"""News of a peer server over real HTTP: chunks as they come, members as they come and go, and bounds."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from pipeline.weights import peer_news
from pipeline.weights.chunks import ChunkStore, digest_of, stores_in
from pipeline.weights.news import MAX_NEWS_BYTES, NEWS_BEAT_S, Member, News
from pipeline.weights.peer import PeerServer, PeerSettings
from tests.unit.pipeline.weights.helpers import TOKEN, new_store
from tests.unit.pipeline.weights.listener import LIMIT_S, Listen, Listener, listening, news_server, post_news

_WANTED = digest_of(b"wanted")


def _member(name: str, *, swarm: str = "s", domain: str = "d") -> Member:
    return Member(url=f"http://{name}:1", domain=domain, swarm=swarm)


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "stores" / "a")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with news_server(partial(stores_in, tmp_path / "stores"), domain="here") as url:
        yield url


@pytest.fixture
def listen(url: str) -> Iterator[Listen]:
    with listening(url) as listen:
        yield listen


def test_the_first_line_tells_the_domain_and_what_is_there_of_what_is_wanted(
    store: ChunkStore, tmp_path: Path, listen: Listen
) -> None:
    here, there = store.put(b"here").digest, new_store(tmp_path / "stores" / "b").put(b"there").digest
    store.put(b"not wanted")
    first = listen([here, there, _WANTED]).first
    assert (first.domain, set(first.chunks)) == ("here", {here, there})


def test_many_wanted_chunks_are_found_as_few_are(store: ChunkStore, tmp_path: Path, listen: Listen) -> None:
    here = {store.put(n.to_bytes(4, "big")).digest for n in range(0, 600, 2)}
    there = {new_store(tmp_path / "stores" / "b").put(n.to_bytes(4, "big")).digest for n in range(0, 600, 3)}
    first = listen([digest_of(n.to_bytes(4, "big")) for n in range(600)]).first
    assert len(first.chunks) == len(here | there)
    assert set(first.chunks) == here | there


def test_later_lines_tell_of_wanted_chunks_only(store: ChunkStore, listen: Listen) -> None:
    listener = listen([_WANTED])
    store.put(b"not wanted")
    store.put(b"wanted")
    assert listener.next() == News(chunks=(_WANTED,))


def _put(
    root: Path, go: multiprocessing.queues.SimpleQueue[bytes], is_there: multiprocessing.synchronize.Event
) -> None:
    store = ChunkStore(root, max_bytes=2**30)
    is_there.set()
    while data := go.get():
        store.put(data)


def test_a_chunk_that_another_process_puts_is_told_without_a_look(
    store: ChunkStore, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_news, "_LOOK_S", 1e6)
    context = multiprocessing.get_context("spawn")
    go, is_there = context.SimpleQueue(), context.Event()
    process = context.Process(target=_put, args=(store.root, go, is_there))
    process.start()
    assert is_there.wait(120)
    wanted = [bytes([n]) for n in range(7)]
    listener = listen([digest_of(data) for data in wanted])
    for data in wanted:
        go.put(data)
        assert listener.next() == News(chunks=(digest_of(data),))
    go.put(b"")
    process.join(30)


def test_a_store_that_is_made_later_is_told_of_as_well(tmp_path: Path, listen: Listen) -> None:
    listener = listen([_WANTED])
    new_store(tmp_path / "stores" / "made-later").put(b"wanted")
    assert listener.next() == News(chunks=(_WANTED,))


def test_a_chunk_that_was_swept_and_came_back_is_told_again(tmp_path: Path, listen: Listen) -> None:
    store = new_store(tmp_path / "stores" / "a", max_bytes=0)
    store.put(b"wanted")
    listener = listen([_WANTED])
    store.sweep()
    store.put(b"wanted")
    assert (listener.first.chunks, listener.next().chunks) == ((_WANTED,), (_WANTED,))


def test_a_chunk_without_a_line_in_the_journal_is_found_by_looking(
    store: ChunkStore, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer died in between."""
    monkeypatch.setattr(peer_news, "_LOOK_S", 0.05)
    listener = listen([_WANTED])
    path = store.path_of(_WANTED)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"wanted")
    assert listener.next() == News(chunks=(_WANTED,))


def test_a_chunk_is_told_although_the_journal_is_cut_behind_it(store: ChunkStore, listen: Listen) -> None:
    store.put(b"before")
    listener = listen([_WANTED])
    store.put(b"wanted")
    os.truncate(store.root / "journal", 0)
    assert listener.next() == News(chunks=(_WANTED,))


def test_members_of_a_swarm_hear_of_one_another_and_nobody_else_does(listen: Listen) -> None:
    first, other = listen(member=_member("a")), listen(member=_member("c", swarm="other"))
    second = listen(member=_member("b"))
    assert (first.first.joined, other.first.joined, second.first.joined) == ((), (), (_member("a"),))
    assert first.next() == News(joined=(_member("b"),))
    second.close()
    assert first.next() == News(left=(_member("b"),))
    assert other.line() == News()


def test_who_only_listens_is_no_member(store: ChunkStore, listen: Listen) -> None:
    member, silent = listen([_WANTED], member=_member("a")), listen([_WANTED])
    store.put(b"wanted")
    assert silent.next() == member.next() == News(chunks=(_WANTED,))


def test_a_member_with_several_streams_leaves_with_the_last(listen: Listen) -> None:
    witness = listen(member=_member("w"))
    streams = [listen(member=_member("a")) for _ in range(2)]
    assert witness.next() == News(joined=(_member("a"),))
    streams[0].close()
    assert [witness.line() for _ in range(2)] == [News()] * 2  # heartbeats
    streams[1].close()
    assert witness.next() == News(left=(_member("a"),))


def _join(url: str, joined: multiprocessing.synchronize.Event) -> None:
    listener = Listener(url, member=_member("killed"))
    joined.set()
    listener.next()
    time.sleep(600)


def test_a_member_whose_process_is_killed_leaves_without_a_wait_for_silence(
    url: str, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_news, "_SILENCE_S", 1e4)
    witness = listen(member=_member("w"))
    context = multiprocessing.get_context("spawn")
    joined = context.Event()
    process = context.Process(target=_join, args=(url, joined))
    process.start()
    assert joined.wait(120)
    assert witness.next() == News(joined=(_member("killed"),))
    process.kill()
    assert witness.next() == News(left=(_member("killed"),))
    process.join(30)


def test_while_nothing_happens_an_empty_line_says_that_the_peer_lives(listen: Listen) -> None:
    began_s = time.monotonic()
    listener = listen()
    assert [listener.line() for _ in range(3)] == [News()] * 3
    assert time.monotonic() - began_s > 2.5 * NEWS_BEAT_S


def _body(**fields: object) -> bytes:
    return orjson.dumps({"want": [], "member": None} | fields)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b'{"want": [', "not JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "not as a list"),
        (_body(want="00"), "not as a list"),
        (_body(want=["../../secret"]), "64 lower-case hex digits"),
        (_body(want=[1]), "int where a text belongs"),
        (_body(member=[]), "not as an object"),
        (_body(member={"url": "http://a:1", "domain": "d"}), "NoneType where a text belongs"),
        (_body(member={"url": "file:///etc", "domain": "d", "swarm": "s"}), "peer URL"),
        (_body(member={"url": f"http://{'a' * 600}", "domain": "d", "swarm": "s"}), "allowed are 512"),
        (_body(member={"url": "http://a:1", "domain": "d" * 200, "swarm": "s"}), "allowed are 128"),
    ],
)
def test_a_request_that_is_none_is_refused_and_says_why(url: str, body: bytes, says: str) -> None:
    status, text, _ = post_news(url, body)
    assert status == 400
    assert says in text


def test_a_request_that_is_too_long_is_refused(url: str) -> None:
    status, text, _ = post_news(url, b" " * (MAX_NEWS_BYTES + 1))
    assert status == 413
    assert str(MAX_NEWS_BYTES) in text


def test_without_the_token_nothing_is_told(url: str) -> None:
    assert post_news(url, _body(), token="wrong")[0] == 401


def test_streams_over_the_bound_get_503_until_one_ends(store: ChunkStore) -> None:
    with news_server([store], max_streams=1) as url, listening(url) as listen:
        first = listen()
        status, text, headers = post_news(url, _body())
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "allowed are 1" in text
        first.close()
        end_s = time.monotonic() + LIMIT_S
        while True:
            try:
                listen()
                break
            except AssertionError:
                assert time.monotonic() < end_s


def test_a_server_that_stops_ends_its_streams(store: ChunkStore) -> None:
    server = PeerServer(PeerSettings(stores=[store], token=TOKEN))
    with listening(server.start()) as listen:
        listener = listen()
        server.stop()
        assert listener.has_ended
