"""What a publish takes, as engines measured it.

Role: the estimate that need-driven publishing weighs against the learner's step.
Data in: `swapped` notices with `fetch_s` (fetch and verification), and how many bytes each version is on the way. Data
out: seconds that an engine will need for the newest version.
Invariants: medians of the last `NUM_FETCHES`; scaled by size, since an anchor is many times a delta; unknown is None.
Failure: none; a span that is no finite number of 0 or more is left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from consumers.scheduler.stage_clock import PhaseKey, PhaseTime
from schemas.records import Manifest, StageEvent, Version

NUM_FETCHES = 32
LOAD = ("rollout", "swapping")


class PublishCost:
    """The folding side."""

    def __init__(self) -> None:
        self._fetches: deque[tuple[float, int | None]] = deque(maxlen=NUM_FETCHES)  # seconds, bytes of the version

    def add(self, event: StageEvent, *, sizes: Mapping[Version, int | None]) -> None:
        """Take one event of a rollout producer."""
        if event.kind != "notice" or event.name != "swapped":
            return
        fetch_s = event.gauges.get("fetch_s", math.nan)
        if math.isfinite(fetch_s) and fetch_s >= 0:
            self._fetches.append((fetch_s, None if event.version is None else sizes.get(event.version)))

    def publish_s(self, num_bytes: int | None, *, times: Mapping[PhaseKey, PhaseTime]) -> float | None:
        """Seconds from the command to an engine that serves a version of this size; None: not known."""
        load = times.get(LOAD)
        if not self._fetches or load is None:
            return None
        fetch_s = median(seconds for seconds, _ in self._fetches)
        known = [size for _, size in self._fetches if size]
        scale = num_bytes / median(known) if known and num_bytes else 1.0
        return fetch_s * scale + load.typical_s


def travel_bytes(manifest: Manifest) -> int:
    """Bytes that an engine which keeps up has to fetch for a version."""
    if manifest.delta_bytes:
        return manifest.delta_bytes
    if manifest.delta_chunks:
        return sum(chunk.num_bytes for chunk in manifest.delta_chunks)
    if manifest.encoding == "delta":
        return sum(chunk.num_bytes for chunk in manifest.chunks)
    return manifest.num_bytes
