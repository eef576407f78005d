"""Since when the same kind of verdict has held.

Data in: the kind at each look, with its time. Data out: `HeldPicture`.
Invariants: a kind that was away for at most `FLICKER_MS` has not been away; before the first look nothing is known.
Failure: none.
"""

from __future__ import annotations

from ops.live.picture import HeldPicture, VerdictKind

FLICKER_MS = 5_000


class Held:
    """Call `look` with each verdict."""

    def __init__(self) -> None:
        self._since_ms: dict[VerdictKind, int] = {}
        self._seen_ms: dict[VerdictKind, int] = {}
        self._last: VerdictKind | None = None

    def look(self, kind: VerdictKind, *, at_ms: int) -> HeldPicture:
        """Take one; returns how it stands with it."""
        for other in [other for other, seen_ms in self._seen_ms.items() if at_ms - seen_ms > FLICKER_MS]:
            if other != kind or other != self._last:  # looks may be further apart than that
                del self._seen_ms[other], self._since_ms[other]
        self._seen_ms[kind], self._last = at_ms, kind
        return HeldPicture(kind=kind, since_ms=self._since_ms.setdefault(kind, at_ms))
