"""What a process that scores does; `fork_server` makes it.

Role: the other side of the pipes of `consumers.rewards.wire`; runs the plug-in on its main thread, async ones on an
event loop there.
Data in: jobs; data out: replies, in the order of the jobs for a sync plug-in.
Invariants: it holds nothing that would be lost by killing it; it ends with the reward consumer that started it,
whatever the plug-in does (prctl(2), PR_SET_PDEATHSIG).
Failure: what the plug-in raises is a reply; anything else ends the process, which its starter sees.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from contextlib import closing
from typing import BinaryIO, cast

from consumers.rewards import wire
from consumers.rewards.call import AsyncCall, Call, call_close, call_now, call_within
from consumers.rewards.leftovers import end_below
from consumers.rewards.plugin import Scorer, load_scorer
from pipeline.priority import OwnWait
from schemas.errors import PluginError, SettingsError

_PR_SET_PDEATHSIG = 1
_HEAD_BYTES = 4
_CLOSE_S = 0.3  # for what the plug-in does at its end; less than its starter waits


def main(jobs_fd: int, said_fd: int) -> int:
    """Serve until the other side closes its end."""
    with open(jobs_fd, "rb") as jobs, open(said_fd, "wb", buffering=0) as said:
        end_with_starter()
        first = _read_frame(jobs)
        if first is None:
            return 0
        begin = wire.decode_begin(first)
        _restore_python_path(begin.python_path)
        try:
            scorer = load_scorer(begin.settings)
        except (PluginError, SettingsError) as error:
            _say(said, wire.refusal(error))
            return 0
        _say(said, _ready(scorer))
        if scorer.async_call is not None:
            asyncio.run(_serve_async(scorer, jobs, said=said, limit_s=begin.settings.timeout_s))
        elif scorer.call is not None:
            with closing(OwnWait()) as waited:
                _serve(scorer.call, jobs, said=said, waited=waited)
        end_below()  # whoever looks from outside finds nobody below a process that has ended
    return 0


def _ready(scorer: Scorer) -> wire.Ready:
    return wire.Ready(
        version=scorer.version,
        batches=scorer.batches,
        is_async=scorer.async_call is not None,
        max_workers=scorer.max_workers,
    )


def _serve(call: Call, jobs: BinaryIO, *, said: BinaryIO, waited: OwnWait) -> None:
    while (content := _read_frame(jobs)) is not None:
        number, samples = wire.decode_job(content)
        before_s = waited.seconds()
        answer = call_now(call, samples)
        waited_ms = max(0.0, 1000 * (waited.seconds() - before_s))
        _say(said, wire.Reply(number=number, answer=answer, waited_ms=waited_ms))


async def _serve_async(scorer: Scorer, jobs: BinaryIO, *, said: BinaryIO, limit_s: float) -> None:
    call = cast("AsyncCall", scorer.async_call)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), jobs
    )
    running: set[asyncio.Task[None]] = set()

    async def serve(content: bytes) -> None:
        number, samples = wire.decode_job(content)
        answer = await call_within(call, samples, limit_s=limit_s)
        _say(said, wire.Reply(number=number, answer=answer))

    try:
        while True:
            length = wire.frame_length(await reader.readexactly(_HEAD_BYTES), limit=wire.MAX_JOB_BYTES)
            task = asyncio.create_task(serve(await reader.readexactly(length)))
            running.add(task)
            task.add_done_callback(running.discard)
    except asyncio.IncompleteReadError:  # the other side has closed its end
        return
    finally:
        transport.close()
        for task in running:
            task.cancel()
        if scorer.aclose is not None:
            await call_close(scorer.aclose, limit_s=_CLOSE_S)


def _read_frame(jobs: BinaryIO) -> bytes | None:
    """The next frame; None when the other side has closed its end."""
    head = jobs.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    length = wire.frame_length(head, limit=wire.MAX_JOB_BYTES)
    content = jobs.read(length)
    return content if len(content) == length else None


def _say(said: BinaryIO, what: wire.Said) -> None:
    view = memoryview(wire.frame(wire.encode_said(what)))
    while view.nbytes > 0:
        view = view[said.write(view) :]


def end_with_starter() -> None:
    """Be killed when the starter is gone; one that is gone by now shows as the end of the jobs."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _restore_python_path(given: str | None) -> None:
    """What the plug-in starts finds the environment as it was."""
    if given is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = given
