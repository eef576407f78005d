"""Starts the dashboard and keeps it until somebody ends it.

Role: from a command to `server`; puts a follower behind a feed.
Data in: where to listen, runs. Data out: the address, said once.
Invariants: Ctrl-C and SIGTERM end it in order.
Failure: `DashboardError`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ops.dashboard.access import is_loopback
from ops.dashboard.feed import Feed
from ops.dashboard.runs import Reached, Runs
from ops.dashboard.server import DashboardError, DashboardSettings, serve
from ops.live.facts import facts_of
from ops.live.follower import Follower, FollowSettings
from ops.live.verdict import judge
from ops.replay.sources import Source
from ops.run_file import RunFile
from topics.log import Log


def reached(log: Log, source: Source, *, settings: RunFile | None) -> Reached:
    """A run whose pictures come from `ops.live`."""
    how = FollowSettings(facts=facts_of(settings))
    if settings is not None:
        how = replace(how, heartbeat_s=settings.run.heartbeat_s)
    return Reached(
        source=source,
        feed=lambda index: Feed(lambda: Follower(log, settings=how), judge=judge, index=index),
        settings=settings,
    )


def serve_forever(
    settings: DashboardSettings, runs: Runs, *, path: str, may_move: bool, say: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        path: what the printed address leads to.
        may_move: take a free port where the wanted one is taken.
        say: gets the address once.

    Raises:
        DashboardError: it cannot listen.
    """

    def ready(url: str) -> None:
        say(f"{url}{path}" + (f"?token={settings.token}" if settings.token is not None else ""))

    async def until_stopped(where: DashboardSettings) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await serve(where, runs, stop=stop, on_ready=ready)

    with suppress(KeyboardInterrupt):
        try:
            asyncio.run(until_stopped(settings))
        except DashboardError:
            if not may_move or (settings.token is None and not is_loopback(settings.host)):
                raise
            asyncio.run(until_stopped(replace(settings, port=0)))
