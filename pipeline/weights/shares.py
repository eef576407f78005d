"""Who brings which chunk: rendezvous hashing over the members of a domain.

Role: splits a version's chunks among hosts that know of each other, without a word between them.
Data in and out: digests and members' URLs; shape (members, chunks) uint64 scores, the highest of which owns the chunk.
Invariants: every host that knows the same members splits alike; a member that comes or goes moves only its own share
(Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). The first chunks a member brings are
those it would own whoever else is there.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

_Words = NDArray[np.uint64]


class Shares:
    """The split of one list of chunks. `me` is always a member."""

    def __init__(self, digests: Sequence[str], *, me: str) -> None:
        self._digests = list(digests)
        self._position = {digest: number for number, digest in enumerate(self._digests)}
        self._names = np.array([int(digest[:16], 16) for digest in self._digests], dtype=np.uint64)
        self._me = me
        self._scores: dict[str, _Words] = {me: self._score(me)}

    @property
    def others(self) -> list[str]:
        """The other members."""
        return [url for url in self._scores if url != self._me]

    @property
    def alone(self) -> bool:
        """Whether there is nobody to share with."""
        return len(self._scores) == 1

    def add(self, url: str) -> bool:
        """A member; False when it was one already."""
        if url in self._scores:
            return False
        self._scores[url] = self._score(url)
        return True

    def remove(self, url: str) -> bool:
        """No member any more; False when it was none."""
        return url != self._me and self._scores.pop(url, None) is not None

    def mine(self) -> list[str]:
        """The chunks this host brings, in the order it does."""
        own = self._scores[self._me]
        is_mine = np.ones(len(own), dtype=bool)
        for scores in self._scores.values():
            is_mine &= own >= scores
        order = np.argsort(own[is_mine])[::-1]
        return [self._digests[number] for number in np.flatnonzero(is_mine)[order]]

    def owner(self, digest: str) -> str:
        """The member that brings a chunk."""
        column = self._position[digest]
        return max(self._scores, key=lambda url: int(self._scores[url][column]))

    def next_to_help(self, digests: Sequence[str]) -> str:
        """The chunk of these to bring for somebody else: one this host comes next for, and its owner comes to last."""
        columns = np.array([self._position[digest] for digest in digests])
        own = self._scores[self._me][columns]
        scores = np.stack([scores[columns] for scores in self._scores.values()])
        rank = (scores > own).sum(axis=0)
        return digests[int(np.lexsort((scores.max(axis=0), rank))[0])]

    def _score(self, url: str) -> _Words:
        """splitmix64 of chunk and member."""
        name = np.uint64(int.from_bytes(blake3(url.encode()).digest(8), "little"))
        with np.errstate(over="ignore"):
            word = (self._names ^ name) + np.uint64(0x9E3779B97F4A7C15)
            word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return word ^ (word >> np.uint64(31))
