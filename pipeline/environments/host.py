"""Runs environments beside the engine: one event loop in a thread of its own.

Role: makes the calls of all trajectories of a process, and tells how they ended.
Data in: tasks and actions by trajectory; data out: `Reply`s, in the order in which calls ended.
Invariants: of a trajectory there is one call at a time; each call gives one reply, unless it was forgotten; a call ends
within its time limit and its tries. A plug-in that blocks the loop costs that loop: every call in it fails, the thread
is left behind and another loop is begun, at most `MOST_LOOPS` times.
Failure: what an environment raises is in its reply; `PluginError` when too many loops were blocked.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

import numpy as np

from pipeline.environments.base import Action, Environment, EnvironmentFactory, Observation, Task, TryAgain
from pipeline.environments.settings import EnvironmentSettings
from pipeline.plugins import told
from schemas.errors import PluginError
from schemas.validation import MAX_REWARD

MOST_LOOPS = 4  # blocked ones that are borne
_MOST_SAID = 200  # characters of an error
_CLOSE_S = 2.0  # longest wait for environments to be closed at the end
RESET, STEP = "reset", "step"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """How a call ended."""

    key: str
    call: str  # RESET or STEP
    observation: Observation | None = None  # None: it failed
    error: str = ""
    timed_out: bool = False
    spent_s: float


class _TooLate(Exception):
    """A call took longer than its limit."""


class _WantsToEnd(Exception):
    """An environment tried to end the process, which is not its own."""


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="environments", daemon=True)
        self._thread.start()
        self._asked_s: float | None = None  # when it was last asked to

    def blocked_s(self, now_s: float) -> float:
        """How long it has not answered; asks it."""
        asked_s = self._asked_s  # read once: the loop's thread takes it away
        if asked_s is None:
            self._asked_s = asked_s = now_s
            self.loop.call_soon_threadsafe(self._answer)
        return now_s - asked_s

    def stop(self, *, wait_s: float) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(wait_s)

    def _answer(self) -> None:
        self._asked_s = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


@dataclass(kw_only=True)
class _Call:
    name: str
    began_s: float
    coroutine: Coroutine[object, object, Observation]
    future: Future[Observation]


@dataclass(kw_only=True)
class _Place:
    """One trajectory."""

    environment: Environment | None = None
    call: _Call | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one call at a time, `close` included


class EnvironmentHost:
    """See the module. Called from one thread.

    Args:
        block_limit_s: time without an answer after which a loop counts as blocked.
    """

    def __init__(
        self, factory: EnvironmentFactory, *, settings: EnvironmentSettings, block_limit_s: float = 10.0
    ) -> None:
        self._factory = factory
        self._settings = settings
        self._block_limit_s = block_limit_s
        self._loop: _Loop | None = None
        self._num_blocked = 0
        self._places: dict[str, _Place] = {}
        self._ended: queue.SimpleQueue[tuple[str, _Call]] = queue.SimpleQueue()

    def begin(self, key: str, task: Task, *, delay_s: float = 0.0) -> None:
        """Make an environment and reset it; one that this trajectory had is closed."""
        self.forget([key])
        place = self._places[key] = _Place()
        self._start(key, RESET, coroutine=self._reset(place, task, delay_s=delay_s))

    def step(self, key: str, action: Action) -> None:
        """Let the environment of a trajectory answer."""
        place = self._places[key]
        environment = place.environment
        if environment is None:
            raise RuntimeError(f"trajectory {key} was not begun")
        self._start(key, STEP, coroutine=self._tried(place, lambda: environment.step(action)))

    def poll(self, *, wait_s: float = 0.0) -> list[Reply]:
        """Calls that ended; waits for the first at most so long.

        Raises:
            PluginError: too many loops were blocked.
        """
        found: list[Reply] = []
        with suppress(queue.Empty):
            item = self._ended.get(timeout=wait_s) if wait_s > 0 else self._ended.get_nowait()
            while True:
                found += self._reply(*item)
                item = self._ended.get_nowait()
        return found if found else self._look_for_block()

    def forget(self, keys: Iterable[str]) -> None:
        """Cancel and close these trajectories; nothing more is told of them."""
        for key in keys:
            place = self._places.pop(key, None)
            if place is None:
                continue
            if place.call is not None:
                place.call.future.cancel()
            if place.call is not None or place.environment is not None:  # a reset may be making it right now
                self._launch(_closed(place))

    def close(self) -> None:
        """Close every environment and the loop; a second call does nothing."""
        self.forget(list(self._places))
        if self._loop is not None:
            with suppress(TimeoutError, CancelledError):
                asyncio.run_coroutine_threadsafe(_settled(), self._loop.loop).result(timeout=_CLOSE_S)
            self._loop.stop(wait_s=_CLOSE_S)
            self._loop = None

    def _start(self, key: str, name: str, *, coroutine: Coroutine[object, object, Observation]) -> None:
        future = self._launch(coroutine)
        call = _Call(name=name, began_s=time.monotonic(), coroutine=coroutine, future=future)
        self._places[key].call = call
        future.add_done_callback(lambda _: self._ended.put((key, call)))

    def _launch(self, coroutine: Coroutine[object, object, Observation]) -> Future[Observation]:
        if self._loop is None:
            self._loop = _Loop()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop.loop)

    async def _reset(self, place: _Place, task: Task, *, delay_s: float) -> Observation:
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        try:
            environment = place.environment = self._factory()
        except (SystemExit, KeyboardInterrupt) as error:
            raise _WantsToEnd(f"making it raised {told(error)}") from error
        return await self._tried(place, lambda: environment.reset(task))

    async def _tried(self, place: _Place, call: Callable[[], Awaitable[Observation]]) -> Observation:
        """A call, again when it asks for it."""
        settings, pause_s = self._settings, self._settings.retry_backoff_s
        for left in range(settings.max_retries, -1, -1):
            try:
                async with place.lock, asyncio.timeout(settings.call_limit_s) as limit:
                    return _checked(await call())
            except TimeoutError:  # ours, or one that the environment raised
                if limit.expired():
                    raise _TooLate from None
                raise
            except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop, with all that runs in it
                raise _WantsToEnd(f"it raised {told(error)}") from error
            except TryAgain:
                if not left:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise RuntimeError("the last try returns or raises")

    def _reply(self, key: str, call: _Call) -> list[Reply]:
        place = self._places.get(key)
        if place is None or place.call is not call:
            return []  # forgotten
        place.call = None
        spent_s = time.monotonic() - call.began_s
        if call.future.cancelled():
            return [Reply(key=key, call=call.name, error="it cancelled its own call", spent_s=spent_s)]
        error = call.future.exception()
        if error is None:
            return [Reply(key=key, call=call.name, observation=call.future.result(), spent_s=spent_s)]
        late = isinstance(error, _TooLate)
        limit_s = self._settings.call_limit_s
        why = f"no answer within {limit_s:g} s" if late else _shortened(told(error))
        return [Reply(key=key, call=call.name, error=why, timed_out=late, spent_s=spent_s)]

    def _look_for_block(self) -> list[Reply]:
        """A loop that does not answer is left behind, with all that runs in it."""
        under_way = [(key, place.call) for key, place in self._places.items() if place.call is not None]
        if self._loop is None or not under_way or self._loop.blocked_s(time.monotonic()) < self._block_limit_s:
            return []
        self._num_blocked += 1
        if self._num_blocked > MOST_LOOPS:
            raise PluginError(
                f"the environment blocked its event loop {self._num_blocked} times for {self._block_limit_s:g} s",
                hint="what computes for long belongs in asyncio.to_thread",
            )
        self._loop = None
        replies = []
        for key, call in under_way:
            with suppress(ValueError, RuntimeError):  # one of them runs, and cannot be closed
                call.coroutine.close()
            self._places[key] = _Place()
            why = f"the event loop of the environments was blocked for {self._block_limit_s:g} s"
            spent_s = time.monotonic() - call.began_s
            replies.append(Reply(key=key, call=call.name, error=why, timed_out=True, spent_s=spent_s))
        return replies


def _checked(observation: object) -> Observation:
    """What an environment said, which nobody has looked at so far: it goes to a tokenizer and into a record.

    The copy has plain numbers and mappings of its own, so that whoever reads it meets no code of the environment.
    """
    if not isinstance(observation, Observation):
        raise TypeError(f"an environment answers with an Observation, not with a {type(observation).__name__}")
    if not isinstance(observation.facts, Mapping) or not isinstance(observation.earlier, Mapping):
        raise TypeError("facts and earlier of an Observation are mappings")
    facts, earlier = dict(observation.facts), dict(observation.earlier)
    for text in (observation.text, *facts.keys(), *facts.values()):
        if not isinstance(text, str):
            raise TypeError(f"text and facts of an Observation are texts, seen {text!r:.80}")
        text.encode()  # what is no UTF-8, such as half a surrogate pair, cannot be written
    if not all(isinstance(turn, int) for turn in earlier):
        raise TypeError(f"delayed rewards are of turns by number, seen {list(earlier)!r:.80}")
    done: object = observation.done
    if isinstance(done, str):
        raise TypeError(f"done of an Observation is True or False, seen {done!r:.80}")
    return replace(
        observation,
        reward=_number(observation.reward),
        done=bool(done),
        earlier={turn: _number(reward) for turn, reward in earlier.items()},
        facts=facts,
    )


def _number(reward: SupportsFloat) -> float:
    """A reward as a plain number, whatever library it is from. Booleans are refused, as of reward plug-ins: True where
    0.9 was meant hides a bug."""
    if isinstance(reward, bool | np.bool_ | str | bytes):
        raise TypeError(f"a reward is a number, seen {reward!r:.80} ({type(reward).__name__}); float() makes one")
    value = float(reward)
    if not math.isfinite(value) or abs(value) > MAX_REWARD:
        raise ValueError(f"a reward is a finite number of at most {MAX_REWARD:g}, seen {value}")
    return value


def _shortened(text: str) -> str:
    """Text for an event: of bounded length, and whole characters."""
    return text[:_MOST_SAID].encode("utf-8", "replace").decode()


async def _closed(place: _Place) -> Observation:
    """Close, once the call under way has ended; what it raises then concerns nobody."""
    if place.environment is not None:
        async with place.lock:
            closing = asyncio.ensure_future(_close(place.environment))
            await asyncio.wait([closing], timeout=_CLOSE_S)
            if not closing.done():
                closing.cancel()
            elif not closing.cancelled():
                closing.exception()
    return Observation()


async def _close(environment: Environment) -> None:
    with suppress(SystemExit, KeyboardInterrupt):
        await environment.close()


async def _settled() -> None:
    """Wait for all that still runs in the loop."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if others:
        await asyncio.wait(others, timeout=_CLOSE_S)
