"""Asks a peer server for news, over real HTTP."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.news import Member, News, NewsRequest, decode_news, encode_request
from pipeline.weights.peer import PeerServer, PeerSettings
from tests.unit.pipeline.weights.helpers import TOKEN

LIMIT_S = 20.0


class Listener:
    """An open stream; its first line is read."""

    def __init__(self, url: str, want: Sequence[str] = (), *, member: Member | None = None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)
        body = encode_request(NewsRequest(want=tuple(want), member=member))
        self._connection.request("POST", "/v1/news", body=body, headers={"Authorization": f"Bearer {TOKEN}"})
        self._answer = self._connection.getresponse()
        assert (self._answer.status, self._answer.headers["Content-Type"]) == (200, "application/x-ndjson")
        self.first = self.line()

    def line(self) -> News:
        return decode_news(self._answer.readline())

    def next(self) -> News:
        """The next line that says something."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            news = self.line()
            if news != News():
                return news
        raise AssertionError("nothing was told")

    @property
    def has_ended(self) -> bool:
        return self._answer.readline() == b""

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


Listen = Callable[..., Listener]


@contextmanager
def listening(url: str) -> Iterator[Listen]:
    """Makes listeners and closes them."""
    made: list[Listener] = []

    def listen(want: Sequence[str] = (), *, member: Member | None = None) -> Listener:
        made.append(Listener(url, want, member=member))
        return made[-1]

    try:
        yield listen
    finally:
        for listener in made:
            listener.close()


@contextmanager
def news_server(
    stores: Sequence[ChunkStore] | Callable[[], Sequence[ChunkStore]], *, domain: str = "", max_streams: int = 100
) -> Iterator[str]:
    """A real peer server; gives its URL."""
    server = PeerServer(PeerSettings(stores=stores, token=TOKEN, domain=domain, max_streams=max_streams))
    try:
        yield server.start()
    finally:
        server.stop()


def post_news(url: str, body: bytes, *, token: str = TOKEN) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer that is no stream."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/news", body=body, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/plain"), "it is a stream"
        return answer.status, answer.read().decode(), dict(answer.headers)
    finally:
        connection.close()
