"""Requests in flight at one server.

Role: sends each request, reads its answer, and notices when the server is gone.
Data in: requests; data out: one `Ended` for each, through a callback.
Invariants: a request comes back once, within `request_limit_s` of being sent. It is sent a second time only where the
server cannot have begun with it: it was busy (429, 503) or no connection was made. While the gate is shut none is sent.
Failure: a request's own trouble is its `Ended.failure`. When a connection fails the server is looked at first: if it is
gone, all requests are, and that is told once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pipeline.engines.http.attach import health
from pipeline.engines.http.dialects.base import Dialect
from pipeline.engines.http.exchange import Answer, Ended, NoAnswer, Refusal
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.wire import KEY_REFUSED, Wire
from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError

REVIVE_HINT = "load a published version; that looks for the server again"
BUSY = (429, 503)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0  # between tries of a busy server
_QUICK_LOOKS = 3  # after a connection failed, before the server counts as gone
_QUICK_LOOK_S = 0.3


class Sender:
    """See the module. Lives on the loop's thread.

    Args:
        on_end: told once per request.
        on_lost: told once, when nothing more will come.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        settings: HttpSettings,
        on_end: Callable[[Ended], None],
        on_lost: Callable[[EngineError], None],
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._on_end = on_end
        self._on_lost = on_lost
        self._dialect: Dialect | None = None
        self._model = ""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sent: dict[str, asyncio.Task[None]] = {}  # of them, those at the server
        self._slots = asyncio.Semaphore(settings.max_requests)
        self._gate = asyncio.Event()
        self._gate.set()
        self._verdict = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self.salt = ""

    def begin(self, dialect: Dialect, *, model: str) -> None:
        """The server was found: requests may be sent."""
        self._dialect, self._model = dialect, model
        self._gate.set()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._keep_looking())

    def is_busy(self) -> bool:
        """Whether requests are in flight."""
        return bool(self._tasks)

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """Send requests."""
        for request in requests:
            self._tasks[request.key] = asyncio.get_running_loop().create_task(self._serve(request))

    def abort(self, keys: Sequence[str]) -> None:
        """Give requests up; their connections are closed, which ends them at the server."""
        for key in keys:
            task = self._tasks.pop(key, None)
            if task is not None:
                task.cancel()
                self._on_end(Ended(key=key))

    async def quiesce(self, *, limit_s: float) -> None:
        """Shut the gate and let what is in flight finish; what has not within the limit is given up."""
        self._gate.clear()
        sent = dict(self._sent)
        if sent and limit_s > 0:
            await asyncio.wait(sent.values(), timeout=limit_s)
        self.abort([key for key in sent if key in self._sent])

    def open_gate(self) -> None:
        """Send again."""
        self._gate.set()

    async def stop(self) -> None:
        """Give everything up, silently."""
        tasks = [*self._tasks.values(), *([] if self._watch is None else [self._watch])]
        self._tasks.clear()
        self._watch = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, request: NewRequest) -> None:
        try:
            ended = Ended(key=request.key, answer=await self._answer(request))
        except (NoAnswer, Refusal) as error:
            if await self._is_gone(error):
                return
            ended = Ended(key=request.key, failure=error.message)
        except EngineError as error:
            ended = Ended(key=request.key, failure=error.message)
        if self._tasks.pop(request.key, None) is not None:
            self._on_end(ended)

    async def _answer(self, request: NewRequest) -> Answer:
        dialect = self._dialect
        if dialect is None:
            raise NoAnswer("no server was found yet", sent=False)
        loop = asyncio.get_running_loop()
        busy_until_s, pause_s = loop.time() + self._settings.busy_limit_s, _FIRST_PAUSE_S
        while True:
            try:
                return await self._send(request, dialect=dialect)
            except (NoAnswer, Refusal) as error:
                again_s = loop.time() + max(pause_s, error.retry_after_s if isinstance(error, Refusal) else 0.0)
                if not _may_try_again(error) or again_s >= busy_until_s or await health(self._wire) is not None:
                    raise
                await asyncio.sleep(again_s - loop.time())
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _send(self, request: NewRequest, *, dialect: Dialect) -> Answer:
        async with self._slots:
            await self._gate.wait()
            ask = dialect.generate(request, model=self._model, salt=self.salt)
            self._sent[request.key] = self._tasks[request.key]
            try:
                data = await self._wire.generate(ask.path, ask.body, limit_s=self._settings.request_limit_s)
            finally:
                self._sent.pop(request.key, None)
        return dialect.read(data)

    async def _is_gone(self, error: NoAnswer | Refusal) -> bool:
        """Whether the failure of one request is that of the server; if it is, that is told."""
        if isinstance(error, Refusal) and error.status in KEY_REFUSED:
            self._lose(error)
            return True
        if isinstance(error, Refusal) and error.status not in BUSY:
            return False
        async with self._verdict:  # many fail at once; one look is enough
            if self._dialect is None:
                return True
            problem: EngineError = error
            for _ in range(_QUICK_LOOKS):
                found = await health(self._wire)
                if found is None:
                    return False
                problem = found
                await asyncio.sleep(_QUICK_LOOK_S)
            self._lose(problem)
            return True

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        healthy_s = loop.time()
        while self._dialect is not None:
            await asyncio.sleep(self._settings.health_every_s)
            problem = await health(self._wire) if self._tasks else None
            if problem is None:
                healthy_s = loop.time()
            elif loop.time() - healthy_s >= self._settings.silence_limit_s:
                self._lose(problem)

    def _lose(self, problem: EngineError) -> None:
        """Nothing more will come of what is in flight."""
        if self._dialect is None:
            return
        self._dialect = None
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._on_lost(
            EngineError(
                f"the server at {self._wire.base_url} is lost: {problem.message}",
                hint=problem.hint if problem.hint else REVIVE_HINT,
            )
        )


def _may_try_again(error: NoAnswer | Refusal) -> bool:
    return not error.sent if isinstance(error, NoAnswer) else error.status in BUSY
