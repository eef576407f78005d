"""Who fetches from whom. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ops.bench.weights.plan import SOURCE


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A way for a version to reach all engines.

    Attributes:
        parent: place of an engine, from 1 -> place of the one it asks, where 0 is the source; None: every engine is
            told of the source alone, serves what it has, and finds the others by itself.
        parallel: chunks an engine asks for at a time; 0: as many as in a run.
    """

    name: str
    parent: Callable[[int], int] | None
    parallel: int

    def parents(self, engines: Sequence[str]) -> dict[str, str]:
        """Engine -> the node it asks; empty when the engines find one another."""
        if self.parent is None:
            return {}
        nodes = (SOURCE, *engines)
        return {engine: nodes[self.parent(place)] for place, engine in enumerate(engines, start=1)}


SINGLE_SOURCE = Scheme(name="single_source", parent=lambda _: 0, parallel=2)
TREE = Scheme(name="tree", parent=lambda place: (place - 1) // 2, parallel=2)
CHAIN = Scheme(name="chain", parent=lambda place: place - 1, parallel=2)
OURS = Scheme(name="ours", parent=None, parallel=0)


def living_ancestor(engine: str, *, parents: dict[str, str], dead: Collection[str]) -> str:
    """The next node up the tree that is not dead."""
    parent = parents[engine]
    while parent in dead:
        parent = parents[parent]
    return parent
