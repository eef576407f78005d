"""The chunks of a host over HTTP: GET and HEAD, with ranges.

Role: one resource of the peer server.
Data in and out: files go from the page cache to the socket by sendfile; nothing is read or verified here, since every
receiver verifies. A chunk is served as soon as it is in a store, so a host can serve while it still fetches.
A request names its traffic class in the header `Rlweave-Class` (`weights` when it does not). All uploads of a class
that has a rate share it, and go out in pieces; so do those of a class that stands back for others (`pipeline.traffic`).
Invariants: at most `max_uploads` bodies are sent at once, more get 503 with Retry-After. None takes longer than
`upload_limit_s`; with a rate that holds for each piece, as the waiting is ours.
Failure: a failing request ends that request only.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from pipeline.traffic.classes import TrafficClass
from pipeline.traffic.sender import HostSender
from pipeline.weights.chunks import ChunkStore, check_digest
from pipeline.weights.rates import TokenBucket
from schemas.errors import WeightsError

CLASS_HEADER = "Rlweave-Class"
DEFAULT_CLASS = "weights"
_CLASS = re.compile(r"[a-z-]{1,32}")
_BURST_S = 0.05  # of a class's rate
_MIN_BURST_BYTES = 16 * 1024
_MAX_PIECE_BYTES = 256 * 1024
_PIECE_S = 0.02  # of a class's rate: many uploads at a low rate all move on within a receiver's patience
_MIN_PIECE_BYTES = 4096
_CLASSES = frozenset(TrafficClass)
_HEADERS = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}

Stores = Callable[[], Sequence[ChunkStore]]
Refuse = Callable[[int, str], web.Response]


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """Bounds of what is sent."""

    max_uploads: int
    upload_limit_s: float
    bytes_s: Mapping[str, float] = field(default_factory=dict)  # by traffic class; absent: as fast as it goes


class ChunkResource:
    """See the module.

    Args:
        stores: gives the stores to serve from.
        on_served_bytes: gets the body bytes of each finished upload.
        refuse: makes the answer to a request that is refused, from status and text.
        sender: of this host; None: no class stands back for another.

    Raises:
        WeightsError: a class or its rate cannot be.
    """

    def __init__(
        self,
        stores: Stores,
        limits: UploadLimits,
        *,
        on_served_bytes: Callable[[int], None],
        refuse: Refuse,
        sender: HostSender | None = None,
    ) -> None:
        self._stores = stores
        self._limits = limits
        self._on_served_bytes = on_served_bytes
        self._refuse = refuse
        self._sender = sender
        self._buckets = {_check_class(name): _bucket(rate) for name, rate in limits.bytes_s.items()}
        self._num_uploads = 0

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer a GET or HEAD."""
        try:
            digest = check_digest(request.match_info["digest"])
            name = _check_class(request.headers.get(CLASS_HEADER, DEFAULT_CLASS))
        except WeightsError as error:
            return self._refuse(400, error.message)
        path = self._find(digest)
        if path is None:
            return web.Response(status=404, text=f"chunk {digest} is not here")
        if self._num_uploads >= self._limits.max_uploads:
            return self._refuse(503, "all upload slots are taken")
        self._num_uploads += 1
        try:
            if request.method == "HEAD" or not (name in self._buckets or self._has_to_ask(name)):
                return await self._send_file(request, path=path, name=name)
            return await self._send_at_rate(request, path=path, name=name)
        finally:
            self._num_uploads -= 1

    def _has_to_ask(self, name: str) -> bool:
        return self._sender is not None and name in _CLASSES and self._sender.governs(TrafficClass(name))

    def _under_way(self, request: web.Request, *, name: str) -> AbstractContextManager[None]:
        """Weights are under way inside."""
        if self._sender is None or name != TrafficClass.WEIGHTS or request.method == "HEAD":
            return nullcontext()
        transport = request.transport
        return self._sender.sending_weights(None if transport is None else transport.get_extra_info("socket"))

    def _served(self, num_bytes: int, *, name: str) -> None:
        self._on_served_bytes(num_bytes)
        if self._sender is not None and name in _CLASSES:
            self._sender.sent(TrafficClass(name), num_bytes)

    async def _pass(self, num_bytes: int, *, name: str) -> None:
        """Wait until a piece may go."""
        if name in self._buckets:
            await asyncio.sleep(self._buckets[name].take(num_bytes))
        while self._sender is not None and self._has_to_ask(name):
            wait_s = self._sender.ask(TrafficClass(name), num_bytes)
            if wait_s == 0:
                return
            await asyncio.sleep(wait_s)

    def _piece_bytes(self, name: str) -> int:
        rates = [self._buckets[name].rate] if name in self._buckets else []
        if self._sender is not None and name in _CLASSES:
            rate = self._sender.permit.rate(TrafficClass(name))
            rates += [] if rate is None else [rate]
        return round(min(_MAX_PIECE_BYTES, max(_MIN_PIECE_BYTES, min(rates, default=inf) * _PIECE_S)))

    def _find(self, digest: str) -> Path | None:
        return next((store.path_of(digest) for store in self._stores() if store.has(digest)), None)

    async def _send_file(self, request: web.Request, *, path: Path, name: str) -> web.StreamResponse:
        response = _SentFile(path, headers=_HEADERS)

        async def send() -> None:
            async with asyncio.timeout(self._limits.upload_limit_s):
                await response.prepare(request)  # sends the whole body

        with self._under_way(request, name=name):
            is_sent = await self._is_sent(request, _to_its_end(send()))
        if (
            is_sent
            and request.method == "GET"
            and response.status in (200, 206)
            and response.content_length is not None
        ):
            self._served(response.content_length, name=name)
        return response

    async def _send_at_rate(self, request: web.Request, *, path: Path, name: str) -> web.StreamResponse:
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:  # swept since
            return web.Response(status=404)
        with file:
            num_bytes = os.fstat(file.fileno()).st_size
            span = _span(request, num_bytes=num_bytes)
            if span is None:
                return web.Response(status=416, headers={"Content-Range": f"bytes */{num_bytes}"})
            response = web.StreamResponse(headers=_HEADERS)
            response.content_length = len(span)
            if "Range" in request.headers:
                response.set_status(206)
                response.headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{num_bytes}"

            async def send() -> None:
                await response.prepare(request)
                most_bytes = self._piece_bytes(name)
                for offset in range(span.start, span.stop, most_bytes):
                    piece_bytes = min(most_bytes, span.stop - offset)
                    await self._pass(piece_bytes, name=name)
                    piece = await asyncio.to_thread(os.pread, file.fileno(), piece_bytes, offset)
                    async with asyncio.timeout(self._limits.upload_limit_s):
                        await response.write(piece)

            with self._under_way(request, name=name):
                is_sent = await self._is_sent(request, send())
            if is_sent:
                self._served(len(span), name=name)
        return response

    async def _is_sent(self, request: web.Request, sending: Awaitable[None]) -> bool:
        try:
            await sending
        except ConnectionError:  # the client has left; it verifies what it has and asks elsewhere
            return False
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            self._refuse(408, "")
            return False
        return True


class _SentFile(web.FileResponse):
    """A file that the handler sends itself, to know when it is done; the framework's own second try is left out."""

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        return None if self.prepared else await super().prepare(request)


async def _to_its_end(sending: Coroutine[None, None, None]) -> None:
    """Let the framework close its file: it does not when it is cancelled while the file is being opened."""
    task = asyncio.create_task(sending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:  # the client has left: the next write ends it
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen
        raise


def _check_class(name: str) -> str:
    if _CLASS.fullmatch(name) is None:
        raise WeightsError(f"traffic class {name[:40]!r} is not 1 to 32 of a-z -; it was refused")
    return name


def _bucket(bytes_s: float) -> TokenBucket:
    return TokenBucket(rate=bytes_s, burst=max(_MIN_BURST_BYTES, bytes_s * _BURST_S))


def _span(request: web.Request, *, num_bytes: int) -> range | None:
    """The bytes asked for; None: not bytes of this file."""
    if "Range" not in request.headers:
        return range(num_bytes)
    try:
        start, stop, _ = request.http_range.indices(num_bytes)
    except ValueError:
        return None
    return range(start, stop) if start < stop else None
