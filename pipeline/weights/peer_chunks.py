"""The chunks of a host over HTTP: GET and HEAD, with ranges.

Role: one resource of the peer server.
Data in and out: files go from the page cache to the socket by sendfile; nothing is read or verified here, since every
receiver verifies. A chunk is served as soon as it is in a store, so a host can serve while it still fetches.
Invariants: at most `max_uploads` bodies are sent at once, more get 503 with Retry-After; none takes longer than
`upload_limit_s`.
Failure: a failing request ends that request only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from pipeline.weights.chunks import ChunkStore, check_digest
from schemas.errors import WeightsError

Stores = Callable[[], Sequence[ChunkStore]]
Refuse = Callable[[int, str], web.Response]


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """Bounds of what is sent."""

    max_uploads: int
    upload_limit_s: float


class ChunkResource:
    """See the module.

    Args:
        stores: gives the stores to serve from.
        on_served_bytes: gets the body bytes of each finished upload.
        refuse: makes the answer to a request that is refused, from status and text.
    """

    def __init__(
        self, stores: Stores, limits: UploadLimits, *, on_served_bytes: Callable[[int], None], refuse: Refuse
    ) -> None:
        self._stores = stores
        self._limits = limits
        self._on_served_bytes = on_served_bytes
        self._refuse = refuse
        self._num_uploads = 0

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer a GET or HEAD."""
        try:
            digest = check_digest(request.match_info["digest"])
        except WeightsError as error:
            return self._refuse(400, error.message)
        path = self._find(digest)
        if path is None:
            return web.Response(status=404, text=f"chunk {digest} is not here")
        if self._num_uploads >= self._limits.max_uploads:
            return self._refuse(503, "all upload slots are taken")
        self._num_uploads += 1
        try:
            return await self._send(request, path=path)
        finally:
            self._num_uploads -= 1

    def _find(self, digest: str) -> Path | None:
        return next((store.path_of(digest) for store in self._stores() if store.has(digest)), None)

    async def _send(self, request: web.Request, *, path: Path) -> web.StreamResponse:
        response = _SentFile(path, headers={"Content-Type": "application/octet-stream"})
        try:
            async with asyncio.timeout(self._limits.upload_limit_s):
                await response.prepare(request)  # sends the whole body
        except ConnectionError:  # the client has left; it verifies what it has and asks elsewhere
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            self._refuse(408, "")
            return response
        if request.method == "GET" and response.status in (200, 206) and response.content_length is not None:
            self._on_served_bytes(response.content_length)
        return response


class _SentFile(web.FileResponse):
    """A file that the handler sends itself, to know when it is done; the framework's own second try is left out."""

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        return None if self.prepared else await super().prepare(request)
