"""What an environment plug-in imports.

Role: the whole interface between rlweave and what a policy acts in. A plug-in is a class, or a function that makes an
object, called once per trajectory with the options of the run file as keyword arguments.
Data in: a task, then what the model said in each turn. Data out: what it reads next, rewards, and whether it is over.
Invariants: of one object, calls come one after the other; importing this module loads the standard library only.
Failure: `TryAgain` has the same call made again; any other exception, and a call over its time limit, begins the
trajectory anew with another object; both within bounds, then the sample ends as failed, never as a reward.

The methods run in one event loop, thousands at a time: what computes for long belongs in `asyncio.to_thread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

OptionValue: TypeAlias = str | int | float | bool | list[str] | list[int] | list[float]


class TryAgain(Exception):
    """Raise this when nothing was done and the same call may succeed."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a trajectory is about. All members of a group get the same one, but for `member`."""

    run: str
    group: int
    member: int
    prompt: str  # as the engine saw it
    answer: str | None  # reference answer, if the prompt has one
    metadata: Mapping[str, str]
    seed: int  # of the group: draw from it what is to be the same for all its members


@dataclass(frozen=True, kw_only=True)
class Action:
    """What the model said in a turn."""

    text: str  # without special tokens, up to a stop string
    turn: int  # from 0
    finish_reason: str  # "stop" or "length"
    last: bool  # no further turn is allowed after this one


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the environment answers, to `reset` and to each action."""

    text: str = ""  # the model reads it before its next turn; it trains nothing
    reward: float = 0.0  # of the turn just taken; `reset` gives none
    done: bool = False  # no further turn follows; `text` is then not read
    earlier: Mapping[int, float] = field(default_factory=dict)  # delayed rewards: turn -> what is added to its reward
    facts: Mapping[str, str] = field(default_factory=dict)  # kept with the sample; a later value replaces an older one


class Environment(Protocol):
    """One trajectory's environment."""

    async def reset(self, task: Task) -> Observation:
        """Begin; what it says is read after the prompt."""
        ...

    async def step(self, action: Action) -> Observation:
        """Answer a turn."""
        ...

    async def close(self) -> None:
        """Free what it holds; called once, whatever happened, also after a failure."""
        ...


class EnvironmentFactory(Protocol):
    """Makes the environment of one trajectory."""

    def __call__(self) -> Environment: ...
