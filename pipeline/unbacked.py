"""Versions that somebody published and nobody trained.

Role: names a false manifest, so that the one who wrote it can be looked for; nobody follows it anyway
(`LedgerView.is_made`).
Data in and out: versions with a manifest and the ledger as read; versions to name.
Invariants: a manifest and the outcomes of its step are one transaction on several partitions, so one may be read
shortly before the other: a version is named only when the ledger has not followed for `PATIENCE_S`, and once. Time is
monotonic (promise 13).
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.history import LedgerView
from schemas.records import Version
from topics.clock import Clock

PATIENCE_S = 5.0


class UnbackedVersions:
    """See the module. Begin to look once the topics have been read to their ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: dict[Version, float] = {}
        self._named: set[Version] = set()

    def look(self, versions: Iterable[Version], *, ledger: LedgerView) -> list[Version]:
        """Versions to name now, ascending."""
        now_s, horizon = self._clock.monotonic(), ledger.horizon
        beyond = [version for version in versions if horizon is None or version > horizon]
        self._since_s = {version: self._since_s.get(version, now_s) for version in beyond}
        due = {version for version, since_s in self._since_s.items() if now_s - since_s >= PATIENCE_S}
        new = sorted(due - self._named)
        self._named.update(new)
        return new
