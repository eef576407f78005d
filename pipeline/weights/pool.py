"""An ordered set of digests that can be sampled: add, discard, first and random members without a scan.

Role: the open chunks of `swarm`.
Invariants: every digest is in it once; every operation but construction takes constant time for each digest it names.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random


class Pool:
    """See the module. Iteration goes in the order of insertion."""

    def __init__(self, digests: Iterable[str] = ()) -> None:
        self._order = dict.fromkeys(digests)
        self._list = list(self._order)  # any order: the place of each is in `_places`
        self._places = {digest: place for place, digest in enumerate(self._list)}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, digest: object) -> bool:
        return digest in self._order

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def put(self, digest: str, *, present: bool) -> None:
        """Add or take out."""
        if not present:
            self.discard(digest)
        elif digest not in self._order:
            self._order[digest] = None
            self._places[digest] = len(self._list)
            self._list.append(digest)

    def discard(self, digest: str) -> None:
        """Take out, if it is in."""
        if digest not in self._order:
            return
        del self._order[digest]
        place, last = self._places.pop(digest), self._list.pop()
        if last != digest:
            self._list[place], self._places[last] = last, place

    def rotate(self, digest: str) -> None:
        """Make it the last one."""
        del self._order[digest]
        self._order[digest] = None

    def first(self, num: int) -> list[str]:
        """The first `num`, or all."""
        return list(islice(self._order, num))

    def sample(self, num: int, *, rng: Random) -> list[str]:
        """`num` at random, or all."""
        return rng.sample(self._list, min(num, len(self._list)))
