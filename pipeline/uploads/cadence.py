"""Whether uploads keep up with checkpoints.

Role: a memory of when checkpoints came and how long uploads took, for `uploader`.
Data in: arrivals, the course of an upload, its end. Data out: `Behind`, with figures, once each time it comes to that.
Invariants: pure. A gap is known from two arrivals on, and is the median of the last ones: a single long step says
nothing. What an upload will take is known from a tenth of it on, or once it has taken longer than a gap.
Failure: none.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from math import ceil

from schemas.records import Version

_NUM_KEPT = 5
_KNOWN_SHARE = 0.1
_RECOVERED = 0.9  # of a gap


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Uploads take longer than checkpoints are apart."""

    upload_s: float  # of one checkpoint, as measured or as it goes now
    gap_s: float  # between two checkpoints
    gap_steps: int
    enough_steps: int  # between checkpoints, at this speed


class Cadence:
    """See the module."""

    def __init__(self) -> None:
        self._last: tuple[Version, float] | None = None
        self._gaps: deque[tuple[float, int]] = deque(maxlen=_NUM_KEPT)  # seconds, steps
        self._is_told = False

    @property
    def gap_s(self) -> float | None:
        """Time between checkpoints; None: not known yet."""
        return statistics.median(seconds for seconds, _ in self._gaps) if self._gaps else None

    def arrived(self, version: Version, *, at_s: float) -> None:
        """A checkpoint is there."""
        if self._last is not None:
            former, former_s = self._last
            if former.lineage == version.lineage and version.step > former.step:
                self._gaps.append((at_s - former_s, version.step - former.step))
        self._last = (version, at_s)

    def going_on(self, *, seconds: float, sent_bytes: int, total_bytes: int) -> Behind | None:
        """An upload is under way for `seconds`."""
        gap_s = self.gap_s
        if gap_s is None:
            return None
        will_take_s = seconds * total_bytes / sent_bytes if sent_bytes > 0 else seconds
        is_known = sent_bytes >= _KNOWN_SHARE * total_bytes or seconds > gap_s
        return self._judge(max(seconds, will_take_s), gap_s=gap_s) if is_known else None

    def ended(self, *, seconds: float) -> Behind | None:
        """An upload has taken so long."""
        gap_s = self.gap_s
        if gap_s is None:
            return None
        if seconds <= _RECOVERED * gap_s:
            self._is_told = False
        return self._judge(seconds, gap_s=gap_s)

    def _judge(self, upload_s: float, *, gap_s: float) -> Behind | None:
        if self._is_told or upload_s <= gap_s:
            return None
        self._is_told = True
        steps = max(1, round(statistics.median(steps for _, steps in self._gaps)))
        enough = max(steps + 1, ceil(steps * upload_s / max(gap_s, 1e-9)))
        return Behind(upload_s=upload_s, gap_s=gap_s, gap_steps=steps, enough_steps=enough)
