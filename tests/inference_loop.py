"""Ending a loop that serves HTTP so that no task and no connection is left, for tests."""

from __future__ import annotations

import asyncio


async def turns() -> None:
    """Let a connection that is being taken be made and told to its handler."""
    for _ in range(3):
        await asyncio.sleep(0)


async def end_tasks() -> None:
    """Cancel every other task and wait for them; connections that were aborted end too."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await turns()
