"""Which checkpoint is uploaded next: one is in hand, and of those that came since only the newest waits.

Role: the choice of `uploader`.
Data in: what is on disk, what is at the target, how an upload ended. Data out: the next one, how many it supersedes.
Invariants: pure. What is in hand is finished before another begins, unless it failed and a newer one is there. Nothing
older than what is at the target is uploaded. Only what came while this process looked counts as superseded.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Collection

from schemas.records import Version

_NONE = Version(lineage=0, step=0)


class UploadQueue:
    """See the module."""

    def __init__(self) -> None:
        self._known: set[Version] = set()  # on disk, at any time
        self._came: set[Version] = set()  # of these, while we looked, and not passed by or taken yet
        self._has_looked = False
        self.done: Version | None = None  # the newest at the target
        self.in_hand: Version | None = None
        self._has_failed = False

    def look(self, on_disk: Collection[Version]) -> list[Version]:
        """Take in what is on disk; gives what is new since the last look, oldest first; nothing at the first."""
        new = sorted(set(on_disk) - self._known)
        self._known.update(new)
        came = new if self._has_looked else []
        self._has_looked = True
        self._came.update(came)
        return came

    @property
    def known(self) -> Collection[Version]:
        """All that were on disk at any time."""
        return frozenset(self._known)

    @property
    def waiting(self) -> Version | None:
        """The newest, unless it is in hand or at the target."""
        newest = max(self._known, default=_NONE)
        return newest if newest > max(self.done or _NONE, self.in_hand or _NONE) else None

    @property
    def next(self) -> Version | None:
        """What to upload now."""
        waiting = self.waiting
        if self.in_hand is None or (self._has_failed and waiting is not None):
            return waiting
        return self.in_hand

    def begin(self, version: Version) -> int:
        """It is in hand; gives how many it supersedes."""
        passed = {each for each in self._came if each < version}
        if self.in_hand is not None and self.in_hand < version:
            passed.add(self.in_hand)
        self._came = {each for each in self._came if each > version}
        self.in_hand, self._has_failed = version, False
        return len(passed)

    def failed(self) -> None:
        """What is in hand did not go through; it stays in hand."""
        self._has_failed = True

    def succeeded(self) -> None:
        """What was in hand is at the target."""
        self.done, self.in_hand, self._has_failed = self.in_hand, None, False
