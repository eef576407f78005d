"""Who brings which chunk: rendezvous hashing over the members of a domain, with equal shares.

Role: splits a version's chunks among hosts that know of each other, without a word between them.
Data in and out: digests and members' URLs; shape (members, chunks) uint64 scores. The highest owns the chunk, unless
that member has its share already from chunks it scores higher for; then the next one does.
Invariants: every host that knows the same members splits alike, and shares differ by one chunk at most: the member with
the largest share would be the last to end. A member that comes or goes moves little more than its own share (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", 1998; Mirrokni et al., "Consistent hashing with bounded
loads", 2018). The first chunks a member brings are those it would own whoever else is there.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

_Words = NDArray[np.uint64]
_Places = NDArray[np.intp]


@dataclass(frozen=True)
class _Split:
    urls: list[str]  # in an order that all hosts have
    owners: _Places  # by chunk, the place of its owner in `urls`


class Shares:
    """The split of one list of chunks. `me` is always a member."""

    def __init__(self, digests: Sequence[str], *, me: str) -> None:
        self._digests = list(digests)
        self._position = {digest: number for number, digest in enumerate(self._digests)}
        self._names = np.array([int(digest[:16], 16) for digest in self._digests], dtype=np.uint64)
        self._me = me
        self._scores: dict[str, _Words] = {me: self._score(me)}
        self._split: _Split | None = None  # of these members; made when it is asked for

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
        self._split = None
        return True

    def remove(self, url: str) -> bool:
        """No member any more; False when it was none."""
        if url == self._me or self._scores.pop(url, None) is None:
            return False
        self._split = None
        return True

    def mine(self) -> list[str]:
        """The chunks this host brings, in the order it does."""
        split = self._current()
        columns = np.flatnonzero(split.owners == split.urls.index(self._me))
        order = np.argsort(self._scores[self._me][columns])[::-1]
        return [self._digests[column] for column in columns[order]]

    def owner(self, digest: str) -> str:
        """The member that brings a chunk."""
        split = self._current()
        return split.urls[int(split.owners[self._position[digest]])]

    def next_to_help(self, digests: Sequence[str]) -> str:
        """The chunk of these to bring for somebody else: one this host comes next for, and its owner comes to last."""
        split = self._current()
        columns = np.array([self._position[digest] for digest in digests])
        scores = np.stack([self._scores[url][columns] for url in split.urls])
        rank = (scores > self._scores[self._me][columns]).sum(axis=0)
        owners = scores[split.owners[columns], np.arange(len(columns))]
        return digests[int(np.lexsort((owners, rank))[0])]

    def spare(self, digests: Sequence[str], *, num_kept: int) -> str | None:
        """The chunk of these to bring for a member that is slower; None: there is none.

        Only one host may do that for a chunk, the one that scores highest for it but for its owner, and an owner keeps
        those it comes to next: nothing is brought twice while all know the same members.

        Args:
            digests: not brought yet, and owned by others.
            num_kept: of each owner.
        """
        if not digests:
            return None
        split = self._current()
        columns = np.array([self._position[digest] for digest in digests])
        scores = np.stack([self._scores[url][columns] for url in split.urls])
        owners, all_columns = split.owners[columns], np.arange(len(columns))
        of_owners = scores[owners, all_columns]
        scores[owners, all_columns] = 0
        is_mine = scores.argmax(axis=0) == split.urls.index(self._me)
        for place in set(owners.tolist()):
            kept = np.flatnonzero(owners == place)
            is_mine[kept[np.argsort(of_owners[kept])[::-1][:num_kept]]] = False
        if not is_mine.any():
            return None
        mine = np.flatnonzero(is_mine)
        return digests[int(mine[of_owners[mine].argmin()])]

    def _current(self) -> _Split:
        if self._split is None:
            urls = sorted(self._scores)
            owners = _split_evenly(np.stack([self._scores[url] for url in urls]))
            self._split = _Split(urls=urls, owners=owners)
        return self._split

    def _score(self, url: str) -> _Words:
        """splitmix64 of chunk and member."""
        name = np.uint64(int.from_bytes(blake3(url.encode()).digest(8), "little"))
        with np.errstate(over="ignore"):
            word = (self._names ^ name) + np.uint64(0x9E3779B97F4A7C15)
            word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return word ^ (word >> np.uint64(31))


def _split_evenly(scores: _Words) -> _Places:
    """The owner of each chunk: the member with the highest score that has room for it.

    A round gives each open chunk to the best member with room; one that gets too many keeps those it scores highest
    for. It then has no room, so there are at most as many rounds as members.

    Args:
        scores: shape (members, chunks).
    """
    num_members, num_chunks = scores.shape
    room = np.full(num_members, num_chunks // num_members)
    room[: num_chunks % num_members] += 1
    owners = np.zeros(num_chunks, dtype=np.intp)
    is_open = np.ones(num_chunks, dtype=bool)
    while is_open.any():
        places, columns = np.flatnonzero(room), np.flatnonzero(is_open)
        best = places[scores[np.ix_(places, columns)].argmax(axis=0)]
        for place in places:
            wanted = columns[best == place]
            taken = wanted[np.argsort(scores[place, wanted])[::-1][: room[place]]]
            owners[taken], is_open[taken] = place, False
            room[place] -= len(taken)
    return owners
