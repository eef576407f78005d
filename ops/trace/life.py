"""A life: what happened to one thing, hop by hop, with the time of each.

Role: the values between what gathers records and what shows them.
Data in and out: plain frozen values; `orjson.dumps` takes them as they are.
Invariants: times are Unix milliseconds as the records hold them, of the clocks of several machines, so a hop never
takes less than 0 and the hops where clocks disagreed are counted (promise 13). Hops are in the order in which they
began; those of one thing side by side (two rewards, several engines) overlap. What was scored after the
outcome is apart.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["sample", "prompt", "version"]


@dataclass(frozen=True, kw_only=True)
class Hop:
    """A stretch of a life."""

    name: str  # "waits for an engine", "is generated", ...
    began_ms: float
    ended_ms: float  # not below `began_ms`
    stage: str  # where it was: "prompts", "rollout", "reward", "reference", "learner", "scheduler"
    who: str = ""  # instance; empty: nobody in particular, or not known
    note: str = ""  # what there is to say of it; text of others may be in it
    waits: bool = False  # nobody worked at it

    @property
    def took_s(self) -> float:
        """How long it was."""
        return (self.ended_ms - self.began_ms) / 1000


@dataclass(frozen=True, kw_only=True)
class Afterwards:
    """Something that was said of a thing when its life had ended; no part of its time."""

    name: str  # "reward digits"
    plugin_version: str
    first_ms: float  # when it was scored; of a group its first member
    last_ms: float
    who: str = ""  # instance
    note: str = ""  # what it said; text of others may be in it


@dataclass(frozen=True, kw_only=True)
class Life:
    """From its first record to its outcome, and on to the engines that serve it."""

    run: str
    kind: Kind
    id: str
    end: str  # what became of it, in a sentence
    hops: tuple[Hop, ...]
    facts: Mapping[str, str] = field(default_factory=dict)  # beside the hops: attempts, versions, values
    unknown: tuple[str, ...] = ()  # hops of which no record tells the time
    num_clock_skews: int = 0  # hops that ended before they began
    afterwards: tuple[Afterwards, ...] = ()  # in the order in which they were

    @property
    def slowest(self) -> Hop | None:
        """The longest hop; the first of several that are as long."""
        return max(self.hops, key=lambda hop: hop.took_s, default=None)

    @property
    def whole_s(self) -> float:
        """From the first hop's begin to the last one's end."""
        if not self.hops:
            return 0.0
        return (max(hop.ended_ms for hop in self.hops) - min(hop.began_ms for hop in self.hops)) / 1000


class Hops:
    """Collects hops and counts clocks that disagree."""

    def __init__(self) -> None:
        self._found: list[Hop] = []
        self.num_clock_skews = 0

    def add(self, name: str, *, span: tuple[float, float], stage: str, who: str = "", note: str = "") -> None:
        """One more; `span` is begin and end. A name that says that it waits marks a hop in which nobody works."""
        began_ms, ended_ms = span
        self.num_clock_skews += ended_ms < began_ms
        self._found.append(
            Hop(
                name=name,
                began_ms=began_ms,
                ended_ms=max(began_ms, ended_ms),
                stage=stage,
                who=who,
                note=note,
                waits=name.startswith("waits"),
            )
        )

    def all(self) -> tuple[Hop, ...]:
        """In the order in which they began."""
        return tuple(sorted(self._found, key=lambda hop: (hop.began_ms, hop.ended_ms)))
