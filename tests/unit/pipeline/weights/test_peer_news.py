"""News of a peer server over real HTTP: chunks as they come, members as they come and go, and bounds."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipeline.weights.chunks import ChunkStore, digest_of, stores_in
from pipeline.weights.news import NEWS_BEAT_S, Member, News, NewsRequest, decode_news, encode_request
from pipeline.weights.peer import PeerServer, PeerSettings
from tests.unit.pipeline.weights.helpers import TOKEN, new_store

_LIMIT_S = 20.0


def _member(name: str, *, swarm: str = "s", domain: str = "d") -> Member:
    return Member(url=f"http://{name}:1", domain=domain, swarm=swarm)


class Listener:
    """An open stream."""

    def __init__(self, url: str, want: Sequence[str] = (), *, member: Member | None = None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_LIMIT_S)
        body = encode_request(NewsRequest(want=tuple(want), member=member))
        self._connection.request("POST", "/v1/news", body=body, headers={"Authorization": f"Bearer {TOKEN}"})
        self._answer = self._connection.getresponse()
        assert (self._answer.status, self._answer.headers["Content-Type"]) == (200, "application/x-ndjson")

    def line(self) -> News:
        return decode_news(self._answer.readline())

    def until(self, done: Callable[[News], bool]) -> News:
        """The first line that is it."""
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            news = self.line()
            if done(news):
                return news
        raise AssertionError("it was not told")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextmanager
def _server(stores: Sequence[ChunkStore] | Callable[[], Sequence[ChunkStore]], **fields: int) -> Iterator[str]:
    server = PeerServer(PeerSettings(stores=stores, token=TOKEN, **fields))  # type: ignore[arg-type]
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "stores" / "a")


@pytest.fixture
def url(store: ChunkStore, tmp_path: Path) -> Iterator[str]:
    with _server(partial(stores_in, tmp_path / "stores")) as url:
        yield url


def test_the_first_line_tells_what_is_there_of_what_is_wanted(store: ChunkStore, url: str) -> None:
    there, _ = store.put(b"there").digest, store.put(b"not wanted")
    listener = Listener(url, [there, digest_of(b"absent")])
    assert listener.line() == News(domain="", chunks=(there,))
    listener.close()


def _put(root: Path, ready: multiprocessing.synchronize.Event, done: multiprocessing.SimpleQueue[float]) -> None:
    store = ChunkStore(root, max_bytes=2**30)
    store.put(b"warm")
    ready.wait(60)
    store.put(b"wanted")
    done.put(time.monotonic())


def test_a_chunk_that_another_process_puts_is_told_at_once(store: ChunkStore, url: str) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.SimpleQueue()
    process = context.Process(target=_put, args=(store.root, ready, done))
    process.start()
    listener = Listener(url, [digest_of(b"wanted")])
    assert listener.line() == News()
    ready.set()
    assert listener.until(lambda news: news != News()) == News(chunks=(digest_of(b"wanted"),))
    told_s = time.monotonic()
    assert told_s - done.get() < 0.1
    process.join(30)
    listener.close()


def test_members_of_a_swarm_hear_of_one_another_and_of_nobody_else(url: str) -> None:
    first = Listener(url, member=_member("a"))
    assert first.line() == News()
    second = Listener(url, member=_member("b"))
    assert second.line() == News(joined=(_member("a"),))
    other = Listener(url, member=_member("c", swarm="other"))
    assert other.line() == News()
    assert first.until(lambda news: news != News()) == News(joined=(_member("b"),))
    second.close()
    assert first.until(lambda news: news != News()) == News(left=(_member("b"),))
    assert other.line() == News()
    first.close()
    other.close()


def test_while_nothing_happens_an_empty_line_says_that_the_peer_lives(url: str) -> None:
    listener = Listener(url)
    began_s = time.monotonic()
    assert [listener.line() for _ in range(3)] == [News()] * 3
    assert NEWS_BEAT_S < time.monotonic() - began_s < 6 * NEWS_BEAT_S
    listener.close()


def test_the_bound_of_streams(store: ChunkStore) -> None:
    with _server([store], max_streams=1) as url:
        listener = Listener(url)
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_LIMIT_S)
        connection.request("POST", "/v1/news", body=b"{}", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert json.dumps("1 streams")[1:-1] in answer.read().decode()
        connection.close()
        listener.close()
