"""The phases of one process over time, in bounded memory.

Data in: phases with the time they began, in order. Data out: spans, shares of a window.
Invariants: spans are in order and do not overlap; those of the last `RECENT_MS` (at most `MOST_RECENT`) are exact;
of older ones at most `MOST_OLD` are kept: neighbours shorter than a grain are one span of the phase that took longer,
and the grain doubles when there are too many.
Failure: none; a time before the one seen last counts as that one (promise 13).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ops.live.picture import Span

RECENT_MS = 90_000
MOST_RECENT = 2_000
MOST_OLD = 400
_GRAIN_MS = 250
_Piece = tuple[str, int, int, int]  # phase, began, ended, time in the phase


class Spans:
    """Call `enter` and `leave` in the order of their times."""

    def __init__(self) -> None:
        self._recent: deque[tuple[str, int, int]] = deque()  # phase, began, ended
        self._old: list[_Piece] = []
        self._grain_ms = _GRAIN_MS
        self._phase = ""
        self._began_ms = 0

    @property
    def phase(self) -> str:
        """The phase now; empty: none."""
        return self._phase

    @property
    def newest(self) -> str:
        """The phase now, else the one that ended last; empty: there was none."""
        return self._phase or (self._recent[-1][0] if self._recent else "")

    @property
    def since_ms(self) -> int | None:
        """When it began."""
        return self._began_ms if self._phase else None

    def enter(self, phase: str, *, at_ms: int) -> None:
        """Be in `phase` from now on."""
        if phase == self._phase:
            return
        self.leave(at_ms=at_ms)
        self._phase, self._began_ms = phase, max(at_ms, self._end_ms())

    def leave(self, *, at_ms: int) -> None:
        """Be in no phase."""
        if self._phase:
            ended_ms = max(at_ms, self._began_ms)
            if ended_ms > self._began_ms:
                self._recent.append((self._phase, self._began_ms, ended_ms))
                self._age(ended_ms)
            self._phase = ""

    def settle(self) -> None:
        """Nothing will come: keep what is coarse only."""
        while self._recent:
            self._keep(self._recent.popleft())

    def spans(self, *, since_ms: int | None = None, until_ms: int | None = None) -> Iterator[Span]:
        """Oldest first.

        Args:
            since_ms: only those that ended after that.
            until_ms: when the last one ended, of a process that is no more.
        """
        ended = (*(piece[:3] for piece in self._old), *self._recent)
        for phase, began_ms, ended_ms in ended:
            if since_ms is None or ended_ms > since_ms:
                yield Span(phase=phase, began_ms=began_ms, ended_ms=ended_ms)
        if self._phase:
            end = None if until_ms is None else max(until_ms, self._began_ms)
            yield Span(phase=self._phase, began_ms=self._began_ms, ended_ms=end)

    def shares(self, *, began_ms: int, ended_ms: int) -> dict[str, float]:
        """Phase -> share of the window; no more of it than is kept exactly."""
        window_ms = ended_ms - began_ms
        if window_ms <= 0:
            return {}
        spent: dict[str, int] = {}
        now = [(self._phase, self._began_ms, ended_ms)] if self._phase else []
        for phase, first_ms, last_ms in (*self._recent, *now):
            within_ms = min(last_ms, ended_ms) - max(first_ms, began_ms)
            if within_ms > 0:
                spent[phase] = spent.get(phase, 0) + within_ms
        return {phase: within_ms / window_ms for phase, within_ms in sorted(spent.items())}

    def _end_ms(self) -> int:
        if self._recent:
            return self._recent[-1][2]
        return self._old[-1][2] if self._old else 0

    def _age(self, now_ms: int) -> None:
        while self._recent and (self._recent[0][2] < now_ms - RECENT_MS or len(self._recent) > MOST_RECENT):
            self._keep(self._recent.popleft())

    def _keep(self, span: tuple[str, int, int]) -> None:
        phase, began_ms, ended_ms = span
        self._old = _with(self._old, (phase, began_ms, ended_ms, ended_ms - began_ms), grain_ms=self._grain_ms)
        while len(self._old) > MOST_OLD:
            self._grain_ms *= 2
            merged: list[_Piece] = []
            for piece in self._old:
                merged = _with(merged, piece, grain_ms=self._grain_ms)
            self._old = merged


def _with(pieces: list[_Piece], piece: _Piece, *, grain_ms: int) -> list[_Piece]:
    """`pieces` with one more at its end, which joins the last one when both are within a grain."""
    if pieces:
        phase, began_ms, ended_ms, spent_ms = pieces[-1]
        is_near = piece[1] - ended_ms <= grain_ms
        if is_near and (piece[0] == phase or piece[2] - began_ms <= grain_ms):
            if piece[0] == phase:
                pieces[-1] = (phase, began_ms, piece[2], spent_ms + piece[3])
            else:
                longer = (phase, spent_ms) if spent_ms >= piece[3] else (piece[0], piece[3])
                pieces[-1] = (longer[0], began_ms, piece[2], longer[1])
            return pieces
    pieces.append(piece)
    return pieces
