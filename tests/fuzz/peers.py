"""The chunk protocol over real HTTP on the loopback interface: what a peer is asked, and what it answers.

Role: bytes of a whole request against the real server, bytes of a whole answer against the real client; both in the
event loop of the caller, so that the lines that run can be seen.
Invariants: a request never ends in status 500, an unhandled error or a dead server; an answer is a chunk of the right
length or a `Problem`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from pipeline.weights import download, journal, news, peer, peer_chunks, peer_news, presence
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings, PeerClient
from pipeline.weights.journal import JournalReader
from pipeline.weights.news import Member, News, NewsRequest
from pipeline.weights.peer import PeerSettings, serve
from pipeline.weights.peer_board import Problem
from schemas.records import ChunkRef
from tests.fuzz.decoder import Decode, Decoder, Violated
from tests.fuzz.mutate import mutate_bytes, mutate_json, mutate_text

_TOKEN = "token-of-the-fuzzer"
_CHUNK = bytes(range(256)) * 16
_LIMIT_S = 5.0
_PATIENCE_S = 0.03
_HEAD = (b"HTTP/1.1 200 OK", b"Content-Type: application/octet-stream", b"Connection: close")


class _Loop:
    """An event loop of our own, whose unhandled errors are kept."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.troubles.append(repr(context)[:2000]))

    def run(self, work: Coroutine[Any, Any, object]) -> object:
        return self._loop.run_until_complete(asyncio.wait_for(work, _LIMIT_S))

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class _Asked:
    """A real peer server; the input is what is sent to it on a connection of its own."""

    def __init__(self, folder: Path) -> None:
        store = ChunkStore(folder / "store", max_bytes=2**30)
        self._digest = store.put(_CHUNK).digest
        self._settings = PeerSettings(
            stores=[store], token=_TOKEN, domain="rack-1", upload_bytes_s={"background": 1e9}, max_streams=4
        )
        self._loop = _Loop()
        self._loop.run(self._start())

    def __call__(self, data: bytes) -> object:
        status = self._loop.run(self._ask(data.replace(b"DIGEST", self._digest.encode())))
        if self._loop.troubles or self._task.done() or status == b"500":
            raise Violated(f"status {status!r}, unhandled: {self._loop.troubles}")
        return "answered"  # how depends on what was read when the connection was given up

    def close(self) -> None:
        """End the server."""
        self._loop.run(self._end())
        self._loop.close()

    async def _start(self) -> None:
        self._stop, ready = asyncio.Event(), asyncio.Event()
        self._url = ""

        def listening(url: str) -> None:
            self._url = url
            ready.set()

        self._task = asyncio.create_task(serve(self._settings, stop=self._stop, on_ready=listening))
        await ready.wait()

    async def _end(self) -> None:
        self._stop.set()
        await self._task

    async def _ask(self, data: bytes) -> bytes:
        line = b""
        host, _, port = self._url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    line = await reader.readline()
            writer.write_eof()  # to a server that waits for more
            line = line if line else await reader.readline()
            await reader.read(4096)  # some of the body; a stream of news is left in the middle
        except ConnectionError:
            return line
        finally:
            writer.transport.abort()
        return line[9:12]


class _Answered:
    """A real client; the input is what it gets as the answer to whatever it asks."""

    def __init__(self, folder: Path) -> None:
        self._answer = b""
        self._loop = _Loop()
        self._client = PeerClient(ClientSettings(token=_TOKEN, stall_limit_s=1.0, rate_bytes_s=1e12))
        self._loop.run(self._start())

    def __call__(self, data: bytes) -> object:
        self._answer = data
        said: list[object] = []
        for num_bytes in (len(_CHUNK), 0):
            said.append(self._loop.run(self._download(num_bytes)))
        said.append(self._loop.run(self._follow()))
        if self._loop.troubles:
            raise Violated(f"unhandled: {self._loop.troubles}")
        return said

    def close(self) -> None:
        """End client and server."""
        self._loop.run(self._end())
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        await self._client.__aenter__()

    async def _end(self) -> None:
        await self._client.__aexit__(None, None, None)
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()

    async def _download(self, num_bytes: int) -> object:
        chunk = ChunkRef(digest="ab" * 32, num_bytes=num_bytes)
        found = await self._client.download(self._url, chunk=chunk, limit_s=2.0)
        if isinstance(found, Problem):
            return found.fault
        if num_bytes and len(found) != num_bytes:
            raise Violated(f"{len(found)} bytes for a chunk of {num_bytes}")
        return bytes(found)

    async def _follow(self) -> object:
        heard: list[News] = []
        member = Member(url="http://127.0.0.1:1", domain="rack-1", swarm="1.6")
        request = NewsRequest(want=("ab" * 32,), member=member)
        ended = await self._client.follow(self._url, request=request, hear=heard.append)
        return heard, None if ended is None else ended.fault


def _journal(folder: Path) -> Decode:
    """What another process left in the journal of a store."""
    path = folder / journal.JOURNAL

    def run(data: bytes) -> object:
        path.write_bytes(b"")
        reader = JournalReader(folder)
        said = [reader.poll()]
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            with path.open("ab") as file:
                file.write(part)
            said.append(reader.poll())
        journal.note_chunk(folder, "ef" * 32)  # another process goes on behind it
        said.append(reader.poll())
        path.write_bytes(data[1:])
        said.append(reader.poll())
        path.unlink()
        return [*said, reader.poll()]

    return run


def _request(*lines: bytes, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d" % len(body)
    token = b"Authorization: Bearer " + _TOKEN.encode()
    return b"\r\n".join((*lines, b"Host: a", token, length, b"Connection: close", b"", body))


def _requests() -> list[bytes]:
    member = Member(url="http://10.0.0.1:8000", domain="rack-1", swarm="1.6")
    get = b"GET /v1/chunks/DIGEST HTTP/1.1"
    wanted = news.encode_request(NewsRequest(want=("ab" * 32,), member=member))
    return [
        _request(get),
        _request(b"HEAD /v1/chunks/DIGEST HTTP/1.1"),
        _request(get, b"Range: bytes=10-99"),
        _request(get, b"Rlweave-Class: background"),
        _request(get, b"Rlweave-Class: background", b"Range: bytes=4000-"),
        _request(get, b"Rlweave-Class: background", b"Range: bytes=-9"),
        _request(b"GET /v1/chunks/..%2f..%2fpins HTTP/1.1"),
        _request(b"GET /v1/health HTTP/1.1"),
        _request(get, b"Rlweave-Class: background", b"Range: bytes=9000-"),
        _request(b"POST /v1/news HTTP/1.1", body=wanted),
        _request(b"POST /v1/news HTTP/1.1", body=b" " * (news.MAX_NEWS_BYTES + 1))[: 2**18],
        _request(b"POST /v1/news HTTP/1.1", body=b'{"want": ["DIGEST"], "member": null}'),
    ]


def _answers() -> list[bytes]:
    length = b"Content-Length: %d" % len(_CHUNK)
    line = news.encode_news(News(chunks=("ab" * 32,), joined=(), left=()))
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (line, line[:9], line[9:])) + b"0\r\n\r\n"
    return [
        b"\r\n".join((*_HEAD, length, b"", _CHUNK)),
        b"\r\n".join((*_HEAD, b"Transfer-Encoding: chunked", b"", chunked)),
        b"\r\n".join((*_HEAD, b"", line)),
        b"HTTP/1.1 503 busy\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 no\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 there\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    ]


def _mutate(data: bytes, draw: Random) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    if body and draw.random() < 0.3:  # the body alone, its length kept right
        changed = mutate_json(body, draw)
        return re.sub(rb"(?<=Content-Length: )\d+", b"%d" % len(changed), head) + end + changed
    return mutate_bytes(data, draw) if draw.random() < 0.5 else mutate_text(data, draw)


_START: tuple[Callable[[Path], Decode], ...] = (_Asked, _Answered, _journal)
_SERVER = (peer._health, peer_chunks.ChunkResource.get, peer_chunks._check_class, peer_chunks._span)
_CLIENT = (PeerClient.download, PeerClient.follow, PeerClient._receive, PeerClient._problem, download._hear_lines)

PEERS = (
    Decoder(
        name="requests",
        seeds=_requests,
        start=_START[0],
        mutate=_mutate,
        covers=(
            *_SERVER,
            *(peer_chunks.ChunkResource._find, peer_chunks.ChunkResource._send_at_rate),
            *(peer_news.NewsResource.post, peer_news.NewsResource._read, presence.Presence.open, news.decode_request),
        ),
    ),
    Decoder(
        name="answers",
        seeds=_answers,
        start=_START[1],
        mutate=_mutate,
        covers=(*_CLIENT, download._news_ended, download._refusal, download._seconds),
    ),
    Decoder(
        name="journal",
        seeds=lambda: [b"\n".join((b"ab" * 32, b"cd" * 32, b""))],
        start=_START[2],
        covers=(JournalReader.poll, JournalReader._read, journal.note_chunk),
    ),
)
