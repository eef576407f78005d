"""The peer server: serves the chunks of one store over HTTP. One process per host.

Role: the source side of every fetch. GET and HEAD `/v1/chunks/{digest}` (with ranges), GET `/v1/health`.
Data in and out: files go from the page cache to the socket by sendfile; nothing is read or verified here, since every
receiver verifies. A chunk is served as soon as it is in the store, so a host can serve while it still fetches.
Invariants: every request carries the run's token; at most `max_uploads` bodies are sent at once, more get 503 with
Retry-After; no upload takes longer than `upload_limit_s`. While it runs, `peer.json` in the store says where it is.
Failure: a bad address ends `start` with `WeightsError`; a failing request ends that request only.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.files import atomic_write, make_folder
from pipeline.weights.tokens import is_authorized
from schemas.errors import DeadlineExceeded, WeightsError

PEER_FILE = "peer.json"
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

    store: ChunkStore
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    advertised_url: str | None = None  # what others should use, when it is not http://host:port
    max_uploads: int = 16
    upload_limit_s: float = 120.0
    on_served_bytes: Callable[[int], None] = _ignore
    on_refused: Callable[[int], None] = _ignore


class PeerFile(TypedDict):
    """Content of `peer.json`."""

    url: str
    pid: int


def read_peer_file(root: Path) -> PeerFile | None:
    """Where the peer over this store is; None when there is no (readable) peer file."""
    try:
        content: object = orjson.loads((root / PEER_FILE).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    if not isinstance(content, dict):
        return None
    url, pid = content.get("url"), content.get("pid")
    return PeerFile(url=url, pid=pid) if isinstance(url, str) and isinstance(pid, int) else None


async def serve(settings: PeerSettings, *, stop: asyncio.Event, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve until `stop` is set.

    Args:
        on_ready: gets the peer's base URL once it accepts requests and `peer.json` is written.

    Raises:
        WeightsError: the address cannot be bound, or the store cannot be written.
    """
    # The client leaves at once on shutdown: it verifies and retries elsewhere.
    runner = web.AppRunner(_app(settings), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        url = await _listen(runner, settings=settings)
        _write_peer_file(settings.store.root, url=url)
        try:
            if on_ready is not None:
                on_ready(url)
            await stop.wait()
        finally:
            _remove_peer_file(settings.store.root, url=url)
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


class _SentFile(web.FileResponse):
    """A file that the handler sends itself, to know when it is done; the framework's own second try is left out."""

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        return None if self.prepared else await super().prepare(request)


class _Chunks:
    """The chunk resource, with its bounded number of uploads."""

    def __init__(self, settings: PeerSettings) -> None:
        self._settings = settings
        self._num_uploads = 0

    async def get(self, request: web.Request) -> web.StreamResponse:
        try:
            path = self._settings.store.path_of(request.match_info["digest"])
        except WeightsError as error:
            return _refuse(400, text=error.message, settings=self._settings)
        if self._num_uploads >= self._settings.max_uploads:
            refusal = _refuse(503, text="all upload slots are taken", settings=self._settings)
            refusal.headers["Retry-After"] = str(_RETRY_AFTER_S)
            return refusal
        self._num_uploads += 1
        try:
            return await self._send(request, path=path)
        finally:
            self._num_uploads -= 1

    async def _send(self, request: web.Request, *, path: Path) -> web.StreamResponse:
        response = _SentFile(path, headers={"Content-Type": "application/octet-stream"})
        try:
            async with asyncio.timeout(self._settings.upload_limit_s):
                await response.prepare(request)  # sends the whole body
        except ConnectionError:  # the client has left; it verifies what it has and asks elsewhere
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            self._settings.on_refused(408)
            return response
        if request.method == "GET" and response.status in (200, 206) and response.content_length is not None:
            self._settings.on_served_bytes(response.content_length)
        return response


def _app(settings: PeerSettings) -> web.Application:
    @web.middleware
    async def authorize(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not is_authorized(request.headers.get("Authorization"), token=settings.token):
            refusal = _refuse(401, text="the token of this run is required", settings=settings)
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        return await handler(request)

    app = web.Application(middlewares=[authorize])
    app.router.add_get("/v1/chunks/{digest}", _Chunks(settings).get)
    app.router.add_get("/v1/health", _health)
    return app


async def _health(_: web.Request) -> web.StreamResponse:
    return web.json_response({"ok": True, "pid": os.getpid()})


def _refuse(status: int, *, text: str, settings: PeerSettings) -> web.Response:
    settings.on_refused(status)
    return web.Response(status=status, text=text)


async def _listen(runner: web.AppRunner, *, settings: PeerSettings) -> str:
    site = web.TCPSite(runner, settings.host, settings.port)
    try:
        await site.start()
    except OSError as error:
        raise WeightsError(
            f"the peer server cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another port, or 0 for a free one",
        ) from error
    if settings.advertised_url is not None:
        return settings.advertised_url.rstrip("/")
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _write_peer_file(root: Path, *, url: str) -> None:
    make_folder(root / "tmp")
    content = orjson.dumps(PeerFile(url=url, pid=os.getpid()))
    atomic_write(root / PEER_FILE, content, tmp_dir=root / "tmp")


def _remove_peer_file(root: Path, *, url: str) -> None:
    """Remove it unless a successor has replaced it."""
    if read_peer_file(root) == PeerFile(url=url, pid=os.getpid()):
        (root / PEER_FILE).unlink(missing_ok=True)
