"""One chunk from one peer, and a peer's news.

Role: the HTTP side of a fetch; the only client code that talks to `peer`.
Data in and out: a chunk reference; its bytes (the digest still to be checked), or the `Problem`. A `NewsRequest`;
calls with each `News`, then the `Problem` that ended them.
Invariants: reads at most the bytes the manifest names, within one time limit, and no line of news over its bound; a
peer that sends nothing for `stall_limit_s` is left; follows no redirect; shows no peer the token itself; decompresses
nothing.
Failure: never an exception of the library: every one is a `Problem`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp

from pipeline.weights.manifest import MAX_CHUNK_BYTES
from pipeline.weights.news import MAX_NEWS_BYTES, News, NewsRequest, decode_news, encode_request
from pipeline.weights.peer_board import Fault, Problem
from pipeline.weights.rates import TokenBucket
from pipeline.weights.tokens import bearer
from schemas.errors import WeightsError
from schemas.records import ChunkRef

_READ_BUFFER_BYTES = 2**20

_BURST_S = 0.1  # of the rate
_MIN_BURST_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How peers are asked."""

    token: str = field(repr=False)
    connect_limit_s: float = 3.0
    stall_limit_s: float = 5.0  # a peer that sends nothing for so long is left
    traffic_class: str = "weights"
    tls: ssl.SSLContext | None = None  # for https; None: the system's certificates
    rate_bytes_s: float | None = None  # of all downloads together; None: as fast as it goes
    on_received: Callable[[str, int], None] = lambda _scope, _num_bytes: None  # scopes of `pipeline.weights.scopes`


class PeerClient:
    """An HTTP client that shows each peer its proof of the run's token; used as an async context manager."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession
        rate = settings.rate_bytes_s
        burst_bytes = 0.0 if rate is None else max(_MIN_BURST_BYTES, _BURST_S * rate)
        self._bucket = None if rate is None else TokenBucket(rate=rate, burst=burst_bytes)

    async def __aenter__(self) -> Self:
        settings = self._settings
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_limit_s, sock_read=settings.stall_limit_s
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=True if settings.tls is None else settings.tls),
            headers={
                "Accept-Encoding": "identity",
                "Rlweave-Class": settings.traffic_class,
            },
            timeout=limits,
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def download(self, url: str, *, chunk: ChunkRef, limit_s: float) -> bytearray | Problem:
        """The bytes a peer sends for `chunk`: of the right length (0: not known, bounded), not yet verified."""
        try:
            async with (
                asyncio.timeout(limit_s),
                self._session.get(
                    f"{url}/v1/chunks/{chunk.digest}", headers=self._shown(url), allow_redirects=False
                ) as response,
            ):
                problem = _refusal(response, chunk=chunk)
                return problem if problem is not None else await self._receive(response, chunk=chunk)
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            return self._problem(error, what=f"chunk {chunk.digest}", limit_s=limit_s)

    async def follow(self, url: str, *, request: NewsRequest, hear: Callable[[News], None]) -> Problem | None:
        """Tell `hear` what a peer has and who else is there, until its news end.

        Returns:
            Why they ended; None: the peer gives no news at all.
        """
        try:
            async with self._session.post(
                f"{url}/v1/news", data=encode_request(request), headers=self._shown(url), allow_redirects=False
            ) as response:
                if response.status in (404, 405, 501):
                    return None
                if response.status == 200:
                    await _hear_lines(response, hear=hear)
                return _news_ended(response.status)
        except WeightsError as error:
            return Problem(fault=Fault.DEAD, detail=error.message)
        except (aiohttp.ClientError, OSError) as error:
            return self._problem(error, what="its news", limit_s=None)

    def _shown(self, url: str) -> dict[str, str]:
        return {"Authorization": bearer(self._settings.token, url=url)}

    def _problem(self, error: Exception, *, what: str, limit_s: float | None) -> Problem:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return Problem(fault=Fault.DEAD, detail="no connection within the limit")
        if isinstance(error, aiohttp.SocketTimeoutError):
            detail = f"nothing of {what} came for {self._settings.stall_limit_s:.3g} s"
            return Problem(fault=Fault.SLOW, detail=detail)
        if isinstance(error, TimeoutError) and limit_s is not None:
            return Problem(fault=Fault.SLOW, detail=f"{what} took over {limit_s:.3g} s")
        return Problem(fault=Fault.DEAD, detail=f"{what}: {type(error).__name__} {error}".strip())

    async def _receive(self, response: aiohttp.ClientResponse, *, chunk: ChunkRef) -> bytearray | Problem:
        length = response.content_length
        total_bytes = chunk.num_bytes if chunk.num_bytes or length is None else length
        data = bytearray(chunk.num_bytes)  # of a length that only the peer claims: as the bytes come
        num_bytes = 0
        async for piece in response.content.iter_any():
            end = num_bytes + len(piece)
            if end > total_bytes:
                detail = f"sent more than {total_bytes} bytes for chunk {chunk.digest}"
                return Problem(fault=Fault.BAD, detail=detail)
            data[num_bytes:end] = piece
            num_bytes = end
            if self._bucket is not None:  # the peer feels it by a full socket
                await asyncio.sleep(self._bucket.take(len(piece)))
        if num_bytes < total_bytes:
            detail = f"sent {num_bytes} bytes for chunk {chunk.digest} of {total_bytes}"
            return Problem(fault=Fault.BAD, detail=detail)
        return data


async def _hear_lines(response: aiohttp.ClientResponse, *, hear: Callable[[News], None]) -> None:
    rest = bytearray()
    async for piece in response.content.iter_any():
        rest += piece
        if b"\n" in piece:  # without one, nothing that was looked through before is looked through again
            *lines, tail = rest.split(b"\n")
            for line in lines:
                hear(decode_news(bytes(line)))
            rest = tail
        if len(rest) > MAX_NEWS_BYTES:
            raise WeightsError(f"a line of news is over {MAX_NEWS_BYTES} bytes; it was not read")


def _news_ended(status: int) -> Problem:
    if status in (401, 403):
        return Problem(fault=Fault.REFUSED, detail=f"the token was not accepted ({status})")
    if status == 200:
        return Problem(fault=Fault.DEAD, detail="its news ended")
    return Problem(fault=Fault.BUSY if status == 503 else Fault.DEAD, detail=f"status {status} for news")


def _refusal(response: aiohttp.ClientResponse, *, chunk: ChunkRef) -> Problem | None:
    match response.status:
        case 200:
            length = response.content_length
            if length is None or length == chunk.num_bytes or (chunk.num_bytes == 0 and length <= MAX_CHUNK_BYTES):
                return None
            detail = f"offered {length} bytes for chunk {chunk.digest} of {chunk.num_bytes}"
            return Problem(fault=Fault.BAD, detail=detail)
        case 404:
            return Problem(fault=Fault.ABSENT, detail=f"chunk {chunk.digest} is not there")
        case 401 | 403:
            return Problem(fault=Fault.REFUSED, detail=f"the token was not accepted ({response.status})")
        case 429 | 503:
            retry_after_s = _seconds(response.headers.get("Retry-After", ""))
            return Problem(fault=Fault.BUSY, detail="all upload slots are taken", retry_after_s=retry_after_s)
        case status:
            return Problem(fault=Fault.DEAD, detail=f"status {status} for chunk {chunk.digest}")


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0
