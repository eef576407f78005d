"""How far behind the learner generation begins: d of the credit (promise 7), measured.

Role: folds what rollout producers say of it; `credit` commands by it.
Data in: heartbeats with the counters `groups_begun{behind=k}` (groups begun by an engine that lacked the k newest
versions) and `swapped` notices, with the newest version there was. Data out: `LagSeen`.
Invariants: d is what the proof of the bound needs: the lag in versions with which a generation begins. A group begun
between a step's end and the swap counts the version that is on its way, so a publish that is faster than a step still
is a lag of one for those. Engines that are further behind than the bound begin nothing, so they would be missing
there: the versions that came while one travelled, seen at the swap, count as well. Only versions of one lineage are
compared; what a process counted before it was first heard is not counted, and a counter that began anew subtracts
nothing; the last `NUM_GROUPS` groups and `NUM_SWAPS` swaps count, however long ago, since time between them says
nothing.
Failure: none; a count that is no finite number of 0 or more is left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.records import StageEvent, Version

NUM_GROUPS = 256  # the last ones that were begun
NUM_SWAPS = 64  # the last ones, of all engines
LEAST_GROUPS = 32  # fewer say nothing of a 95th percentile
LEAST_SWAPS = 8
LATE_SHARE = 0.05  # what a 95th percentile leaves out
_BEGUN = re.compile(r"groups_begun\{behind=(\d{1,4})\}\Z")


@dataclass(frozen=True, kw_only=True)
class LagSeen:
    """The last groups and swaps, by versions behind."""

    begun: Mapping[int, float] = field(default_factory=dict)  # groups
    swapped: Mapping[int, float] = field(default_factory=dict)  # versions that were newer than the one just loaded

    @property
    def versions(self) -> int | None:
        """d: the 95th percentile; None: too little was seen."""
        return self.beyond(LATE_SHARE)

    @property
    def at_swap(self) -> int | None:
        """Versions that come while one travels, 95th percentile; None: too little was seen."""
        return _quantile(self.swapped, late_share=LATE_SHARE, least=LEAST_SWAPS)

    def beyond(self, late_share: float) -> int | None:
        """The lag that at most this share of the groups exceeds."""
        begun = _quantile(self.begun, late_share=late_share, least=LEAST_GROUPS)
        swapped = _quantile(self.swapped, late_share=late_share, least=LEAST_SWAPS)
        return begun if begun is None or swapped is None else max(begun, swapped)


class PublishLag:
    """The folding side. Call `add` with each event of a rollout producer, in its order."""

    def __init__(self) -> None:
        self._last: dict[str, dict[int, float]] = {}  # instance -> its counters
        self._begun: deque[dict[int, float]] = deque()  # per heartbeat
        self._num_begun = 0.0
        self._swapped: deque[int] = deque(maxlen=NUM_SWAPS)

    def add(self, event: StageEvent, *, newest: Version | None) -> None:
        """Take one event; `newest` is the newest version there is."""
        if event.kind == "heartbeat":
            self._take(event.instance, _counters(event.gauges))
        elif event.kind == "notice" and event.name == "swapped":
            version = event.version
            if version is not None and newest is not None and version.lineage == newest.lineage:
                self._swapped.append(max(0, newest.step - version.step))

    def forget(self, instance: str) -> None:
        """The process is gone; what it counted stays counted."""
        self._last.pop(instance, None)

    def seen(self) -> LagSeen:
        """What is known now."""
        begun: dict[int, float] = {}
        for counts in self._begun:
            for behind, num in counts.items():
                begun[behind] = begun.get(behind, 0.0) + num
        return LagSeen(begun=begun, swapped=dict(Counter(self._swapped)))

    def _take(self, instance: str, counters: dict[int, float]) -> None:
        before = self._last.get(instance)
        self._last[instance] = counters
        if before is None:
            return
        more = {behind: value - before.get(behind, 0.0) for behind, value in counters.items()}
        more = {behind: num for behind, num in more.items() if num > 0}
        if not more:
            return
        self._begun.append(more)
        self._num_begun += sum(more.values())
        while self._num_begun - (oldest := sum(self._begun[0].values())) >= NUM_GROUPS:
            self._num_begun -= oldest
            self._begun.popleft()


def _counters(gauges: Mapping[str, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for name, value in gauges.items():
        match = _BEGUN.match(name)
        if match and math.isfinite(value) and value >= 0:
            found[int(match[1])] = value
    return found


def _quantile(counts: Mapping[int, float], *, late_share: float, least: int) -> int | None:
    total = sum(counts.values())
    if total < least:
        return None
    later = total
    for behind in sorted(counts):
        later -= counts[behind]
        if later <= late_share * total:
            return behind
    return max(counts)
