"""The peer server: serves the chunk stores of its host over HTTP. One process per host.

Role: the source side of every fetch. GET and HEAD `/v1/chunks/{digest}` (see `peer_chunks`), POST `/v1/news` (see
`peer_news`), GET `/v1/health`.
Data in and out: the stores' files, served as they are and as soon as they are there.
Invariants: every request proves that it knows the run's token; uploads and streams are bounded. While it runs,
`peer.json` says where it is.
Failure: a bad address ends `start` with `WeightsError`; a failing request ends that request only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.http import HttpProcessingError

from pipeline.traffic.sender import HostSender
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.news import MAX_NEWS_BYTES
from pipeline.weights.peer_chunks import ChunkResource, Stores, UploadLimits
from pipeline.weights.peer_file import remove_peer_file, write_peer_file
from pipeline.weights.peer_news import NewsResource
from pipeline.weights.tokens import is_authorized
from schemas.errors import DeadlineExceeded, WeightsError

MAX_STREAMS = 1024
_RETRY_AFTER_S = 1
_START_LIMIT_S = 10.0
_STOP_LIMIT_S = 10.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _ignore(_: int) -> None:
    """The default of a metrics hook."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """How a peer serves.

    `on_served_bytes` gets the body bytes of each finished upload, `on_refused` the HTTP status of each refusal.
    """

    stores: Sequence[ChunkStore] | Stores  # a callable gives those that are there now
    token: str = field(repr=False)
    folder: Path | None = None  # where `peer.json` is written; None: nowhere
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    domain: str = ""  # of this host
    advertised_url: str | None = None  # what others should use, when it is not http://host:port
    max_uploads: int = 16
    upload_limit_s: float = 120.0
    upload_bytes_s: Mapping[str, float] = field(default_factory=dict)  # by traffic class; absent: no limit
    tls: ssl.SSLContext | None = None  # see `tls.server_context`; None: plain http
    max_streams: int = MAX_STREAMS  # of news
    sender: HostSender | None = None  # of this host; None: no class stands back for another
    on_served_bytes: Callable[[int], None] = _ignore
    on_refused: Callable[[int], None] = _ignore


async def serve(settings: PeerSettings, *, stop: asyncio.Event, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until `stop` is set.

    Args:
        on_ready: gets the peer's base URL once it accepts requests and `peer.json` is written.

    Raises:
        WeightsError: the address cannot be bound, or the folder cannot be written.
    """
    # The client leaves at once on shutdown: it verifies and retries elsewhere.
    own = _Own()
    app, news = _app(settings, own=own)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True, logger=_server_log())
    await runner.setup()
    try:
        url = own.url = await _listen(runner, settings=settings)
        if settings.folder is not None:
            write_peer_file(settings.folder, url=url)
        try:
            if on_ready is not None:
                on_ready(url)
            await _watch(news, stop=stop)
        finally:
            if settings.folder is not None:
                remove_peer_file(settings.folder, url=url)
    finally:
        await runner.cleanup()


class PeerServer:
    """`serve` on a thread of its own, for callers without an event loop."""

    def __init__(self, settings: PeerSettings) -> None:
        self._settings = settings
        self._thread = threading.Thread(target=self._run, name="peer-server", daemon=True)
        self._changed = threading.Event()  # ready, or failed
        self._error: WeightsError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.url = ""

    def start(self) -> str:
        """Serve; gives the base URL.

        Raises:
            WeightsError: the address cannot be bound, or the store cannot be written.
            DeadlineExceeded: the server did not come up.
        """
        self._thread.start()
        if not self._changed.wait(_START_LIMIT_S):
            raise DeadlineExceeded(f"waited {_START_LIMIT_S:g} s for the peer server to listen")
        if self._error is not None:
            raise self._error
        return self.url

    def stop(self) -> None:
        """Stop serving; does nothing when it is not running.

        Raises:
            DeadlineExceeded: the server did not stop.
        """
        if self._loop is None or self._stop is None or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_LIMIT_S)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"waited {_STOP_LIMIT_S:g} s for the peer server to stop")

    @property
    def alive(self) -> bool:
        """Whether the server's thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except WeightsError as error:
            self._error = error
        finally:
            self._changed.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await serve(self._settings, stop=self._stop, on_ready=self._ready)

    def _ready(self, url: str) -> None:
        self.url = url
        self._changed.set()


def _server_log() -> logging.Logger:
    """Where the server logs. Requests that are no HTTP are left out: anybody can send any number of them, and what
    would be quoted may hold a token."""
    log = logging.getLogger("rlweave.peer")
    if _no_http not in log.filters:
        log.addFilter(_no_http)
    return log


def _no_http(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return not isinstance(error, HttpProcessingError)


async def _watch(news: NewsResource, *, stop: asyncio.Event) -> None:
    watch, stopped = asyncio.create_task(news.watch()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({watch, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if watch.done():
            watch.result()  # raises: nobody would be told any more
    finally:
        watch.cancel()
        stopped.cancel()


@dataclass
class _Own:
    """What is known once the server listens."""

    url: str = ""  # that others use


def _app(settings: PeerSettings, *, own: _Own) -> tuple[web.Application, NewsResource]:
    @web.middleware
    async def authorize(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not own.url:
            return refuse(503, "not ready yet")
        if not is_authorized(request.headers.get("Authorization"), token=settings.token, url=own.url):
            refusal = refuse(401, "the token of this run is required")
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        return await handler(request)

    def refuse(status: int, text: str) -> web.Response:
        settings.on_refused(status)
        headers = {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else {}
        return web.Response(status=status, text=text, headers=headers)

    given = settings.stores
    stores = given if callable(given) else lambda: given
    limits = UploadLimits(
        max_uploads=settings.max_uploads,
        upload_limit_s=settings.upload_limit_s,
        bytes_s=settings.upload_bytes_s,
    )
    chunks = ChunkResource(
        stores, limits, on_served_bytes=settings.on_served_bytes, refuse=refuse, sender=settings.sender
    )
    app = web.Application(middlewares=[authorize], client_max_size=MAX_NEWS_BYTES)
    app.router.add_get("/v1/chunks/{digest}", chunks.get)
    app.router.add_get("/v1/health", _health)
    news = NewsResource(stores, domain=settings.domain, max_streams=settings.max_streams, refuse=refuse)
    app.router.add_post("/v1/news", news.post)

    async def close(_: web.Application) -> None:
        news.close()

    app.on_shutdown.append(close)
    return app, news


async def _health(_: web.Request) -> web.StreamResponse:
    return web.json_response({"ok": True, "pid": os.getpid()})


async def _listen(runner: web.AppRunner, *, settings: PeerSettings) -> str:
    scheme = "http" if settings.tls is None else "https"
    advertised = settings.advertised_url
    if settings.tls is not None and advertised is not None and not advertised.startswith("https://"):
        raise WeightsError(
            f"the peer server has TLS, but its advertised URL is {advertised}; nobody could ask it",
            hint="set weights.advertised_url to https://..., or unset weights.tls_cert",
        )
    site = web.TCPSite(runner, settings.host, settings.port, ssl_context=settings.tls)
    try:
        await site.start()
    except OSError as error:
        raise WeightsError(
            f"the peer server cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another port, or 0 for a free one",
        ) from error
    if advertised is not None:
        return advertised.rstrip("/")
    host, port = runner.addresses[0][:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
