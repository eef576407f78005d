"""For tests of environments: play one through without a model.

Role: what a plug-in's own test calls.
Data in: an environment and what a model would say; data out: what the environment answered.
Invariants: calls are those of a run, in the same order, `close` included.
Failure: what the environment raises.
"""

from __future__ import annotations

import asyncio

from pipeline.environments.base import Action, Environment, Observation, Task

TASK = Task(run="test", group=0, member=0, prompt="", answer=None, metadata={}, seed=0)


def play(environment: Environment, *texts: str, task: Task = TASK) -> list[Observation]:
    """What it says at the beginning, and to each of the texts until it is done."""
    return asyncio.run(_played(environment, texts, task=task))


async def _played(environment: Environment, texts: tuple[str, ...], *, task: Task) -> list[Observation]:
    try:
        said = [await environment.reset(task)]
        for turn, text in enumerate(texts):
            if said[-1].done:
                break
            action = Action(text=text, turn=turn, finish_reason="stop", last=turn + 1 == len(texts))
            said.append(await environment.step(action))
        return said
    finally:
        await environment.close()
