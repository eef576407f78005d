"""The dashboard's web server: pages, assets, a stream of events per run, and questions about samples.

    GET /                        the list of runs           GET /api/runs
    GET /run/NAME                one run                    GET /api/run/NAME/events    server-sent events
    GET /assets/FILE             what the pages are made of GET /api/run/NAME/lost      ids not trained, by reason
                                                            GET /api/run/NAME/outcomes  groups, newest first
                                                            GET /api/run/NAME/apart     trained, gaps kept
                                                            GET /api/run/NAME/group     one group; tokens of a member
Role: from requests to `runs`; what reads the broker does so on other threads.
Invariants: reads only; every answer passes `access.guard`; streams are bounded in number, and a slow reader skips.
Failure: named errors are JSON with `message` and `hint`; a bad address ends `serve` with `DashboardError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from ops.dashboard import questions
from ops.dashboard.access import add_headers, guard, is_loopback
from ops.dashboard.assets import Asset, load_assets
from ops.dashboard.runs import OpenRun, Runs
from ops.replay.sources import RunNotFound
from schemas.errors import LogError, RlweaveError, SettingsError
from topics.catalog import check_run_name

MAX_STREAMS = 64
STALL_S = 60.0  # in which a reader has to take what it is sent, or its place in `MAX_STREAMS` is given up
_QUIET_S = 10.0  # after which a stream says that it is there
_RETRY_MS = 1500
_IDLE_LOOK_S = 30.0


class DashboardError(RlweaveError):
    """The dashboard cannot listen where it was told to."""


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """Where to listen, and for whom."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    token: str | None = field(default=None, repr=False)  # None: none is asked for; only on loopback


async def serve(
    settings: DashboardSettings, runs: Runs, *, stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Serve until `stop` is set.

    Args:
        on_ready: gets the base URL once requests are accepted.

    Raises:
        DashboardError: the address cannot be bound, or others reach it and there is no token.
    """
    if settings.token is None and not is_loopback(settings.host):
        raise DashboardError(
            f"{settings.host} is reached by other machines, and the dashboard shows prompts and completions; it was "
            "not started",
            hint="give --token-file FILE, or listen on 127.0.0.1",
        )
    app = _Server(settings, runs).app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    try:
        on_ready(await _listen(runner, settings))
        while not stop.is_set():
            await _wait(stop, limit_s=_IDLE_LOOK_S)
            await asyncio.to_thread(runs.let_go_idle)
    finally:
        await runner.cleanup()
        await asyncio.to_thread(runs.close)


async def _listen(runner: web.AppRunner, settings: DashboardSettings) -> str:
    site = web.TCPSite(runner, settings.host, settings.port)
    try:
        await site.start()
    except OSError as error:
        raise DashboardError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another --port; 0 takes a free one",
        ) from error
    port = runner.addresses[0][1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{port}"


async def _wait(event: asyncio.Event, *, limit_s: float) -> bool:
    """Whether it was set within the limit."""
    try:
        return await asyncio.wait_for(event.wait(), limit_s)
    except TimeoutError:
        return False


class _Server:
    """The handlers."""

    def __init__(self, settings: DashboardSettings, runs: Runs) -> None:
        self._settings = settings
        self._runs = runs
        self._assets = load_assets()
        self._num_streams = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[guard(host=self._settings.host, token=self._settings.token)])
        app.on_response_prepare.append(add_headers)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/run/{run}", self._page),
                web.get("/run/{run}/{view:samples|group}", self._page),
                web.get("/assets/{name}", self._asset),
                web.get("/api/runs", self._list),
                web.get("/api/run/{run}/events", self._events),
                web.get("/api/run/{run}/lost", self._ask(questions.lost)),
                web.get("/api/run/{run}/outcomes", self._ask(questions.outcomes)),
                web.get("/api/run/{run}/apart", self._ask(questions.apart)),
                web.get("/api/run/{run}/group", self._ask(questions.group)),
            ]
        )
        return app

    async def _page(self, request: web.Request) -> web.Response:
        return _answer(request, self._assets["index.html"])

    async def _asset(self, request: web.Request) -> web.Response:
        asset = self._assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        return _answer(request, asset)

    async def _list(self, _: web.Request) -> web.Response:
        return await _json(questions.listed, self._runs)

    def _ask(self, question: Callable[[OpenRun, questions.Query], object]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            def answer() -> object:
                return question(self._open(request), questions.Query(request.query))

            return await _json(answer)

        return handler

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._num_streams >= MAX_STREAMS:
            return web.Response(status=503, text=f"{MAX_STREAMS} windows are open; close one\n")
        try:
            run = await asyncio.to_thread(self._open, request)
        except RlweaveError as error:
            return _error(error)
        self._num_streams += 1
        try:
            return await _stream(request, run)
        finally:
            self._num_streams -= 1

    def _open(self, request: web.Request) -> OpenRun:
        name = request.match_info["run"]
        check_run_name(name)
        return self._runs.open(name)


async def _stream(request: web.Request, run: OpenRun) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    seen: dict[str, int] = {}
    try:
        await answer.write(f"retry: {_RETRY_MS}\n\n".encode())
        with run.feed.reader() as changed:
            while True:
                changed.clear()
                for name, number, content in run.feed.newer(seen):
                    seen[name] = number
                    await _write(answer, b"event: %s\ndata: %s\n\n" % (name.encode(), content))
                if not await _wait(changed, limit_s=_QUIET_S):
                    await _write(answer, b": still here\n\n")
    except ConnectionError:  # the reader left
        return answer
    except TimeoutError:  # it is there and does not read
        if request.transport is not None:
            request.transport.abort()
        return answer


async def _write(answer: web.StreamResponse, content: bytes) -> None:
    await asyncio.wait_for(answer.write(content), STALL_S)


async def _json(work: Callable[..., object], *arguments: object) -> web.Response:
    try:
        found = await asyncio.to_thread(work, *arguments)
    except RlweaveError as error:
        return _error(error)
    return web.Response(body=orjson.dumps(found), content_type="application/json")


def _error(error: RlweaveError) -> web.Response:
    status = 503 if isinstance(error, LogError) else 400 if isinstance(error, SettingsError) else 409
    status = 404 if isinstance(error, RunNotFound) else status
    body = orjson.dumps({"message": error.message, "hint": error.hint})
    return web.Response(status=status, body=body, content_type="application/json")


def _answer(request: web.Request, asset: Asset) -> web.Response:
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == asset.etag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=asset.content, content_type=asset.content_type, charset="utf-8", headers=headers)
