"""Who else brings chunks into this host's domain, and whether they do.

Role: the membership side of `swarm`.
Data in: lists of members that peers tell, the chunks that members report. Data out: the split of the chunks.
Invariants: a host is a member while some peer has it on its list and its own news go on. One that brings nothing while
others do stands aside, and is a member again with the next chunk it brings. When nobody brings anything, nobody stands
aside: the fault lies elsewhere, and everybody would storm the source once it is mended.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.weights.shares import Shares
from topics.clock import Clock


class Members:
    """See the module. Methods that may change the split say whether they did.

    Args:
        me: URL of this host's peer server; empty: it has none.
    """

    def __init__(self, digests: Sequence[str], *, me: str, clock: Clock) -> None:
        self._clock = clock
        self._tellers: dict[str, set[str]] = {}  # member -> peers whose lists it is on
        self._brought_s: dict[str, float] = {}  # member -> when it last brought a chunk
        self.newest_s = clock.monotonic()  # when anybody did
        self.shares = Shares(digests, me=me)

    def joined(self, url: str, *, teller: str) -> bool:
        """A peer has it on its list."""
        self._tellers.setdefault(url, set()).add(teller)
        self._brought_s[url] = self._clock.monotonic()
        return self.shares.add(url)

    def left(self, url: str, *, teller: str) -> bool:
        """A peer has it on its list no more."""
        tellers = self._tellers.get(url)
        if tellers is None:
            return False
        tellers.discard(teller)
        return self._forget(url) if not tellers else False

    def silent(self, url: str) -> bool:
        """Its own news ended, and with them what it told of others."""
        changed = self._forget(url)
        for member in list(self._tellers):
            changed = self.left(member, teller=url) or changed
        return changed

    def brought(self, url: str) -> bool:
        """It has a chunk that nobody in the domain had."""
        self.newest_s = self._brought_s[url] = self._clock.monotonic()
        return url in self._tellers and self.shares.add(url)

    def brought_here(self) -> None:
        """This host has brought a chunk."""
        self.newest_s = self._clock.monotonic()

    def set_aside(self, owed: Iterable[str], *, patience_s: float) -> bool:
        """Let those stand aside who bring nothing while others do.

        Args:
            owed: chunks that others are to bring and have not.
        """
        stalled = [url for url in self.shares.others if self.newest_s - self._brought_s[url] > patience_s]
        idle = {self.shares.owner(digest) for digest in owed}.intersection(stalled) if stalled else set()
        for url in idle:
            self.shares.remove(url)
        return bool(idle)

    def _forget(self, url: str) -> bool:
        self._tellers.pop(url, None)
        return self.shares.remove(url)
