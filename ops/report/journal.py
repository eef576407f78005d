"""What was said in a run: how versions travelled, what the scheduler and the supervisor decided, notices by kind.

Data in: StageEvents in order. Data out: a `VersionTrip` per version, decisions with their reasons, counts.
Invariants: times are unix milliseconds and inform people only, differences clamp at 0 (promise 13); of decisions the
first and the last ones are kept, of notices of a kind the count and the last one, so memory is bounded by versions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from schemas.records import StageEvent

KEPT = 40  # decisions at either end
_SCALING = ("rollout", "learner", "reward")  # beginnings of targets whose number of processes is decided
_ORDINARY = frozenset({"step", "staged", "swapped", "commanded", "started", "stopped"})  # told elsewhere on the page


@dataclass
class VersionTrip:
    """One version, from the optimizer to the engines."""

    staged_ms: int
    new_bytes: float  # that had to be written for it
    state_bytes: float  # of the whole state
    first_served_ms: int | None = None
    last_served_ms: int | None = None

    @property
    def first_served_s(self) -> float | None:
        """From the optimizer to the first engine."""
        return None if self.first_served_ms is None else max(0.0, (self.first_served_ms - self.staged_ms) / 1000)

    @property
    def last_served_s(self) -> float | None:
        """From the optimizer to the last engine that loaded it."""
        return None if self.last_served_ms is None else max(0.0, (self.last_served_ms - self.staged_ms) / 1000)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the scheduler commanded, or the supervisor carried out."""

    unix_ms: int
    who: str
    what: str
    why: str


@dataclass
class Told:
    """Notices of one name from one stage."""

    num: int = 0
    last_unix_ms: int = 0
    last: str = ""


@dataclass
class Journal:
    """Folds events."""

    trips: dict[str, VersionTrip] = field(default_factory=dict)  # by version, lineage.step
    told: dict[tuple[str, str], Told] = field(default_factory=dict)  # by stage and name
    num_decisions: int = 0
    _first: list[Decision] = field(default_factory=list)
    _last: deque[Decision] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, event: StageEvent) -> None:
        """Take one event."""
        if event.kind != "notice":
            return
        version = event.details.get("version", "")
        if event.name == "staged":
            sizes = (event.gauges.get("new_bytes", 0.0), event.gauges.get("state_bytes", 0.0))
            self.trips.setdefault(version, VersionTrip(event.unix_ms, *sizes))
        elif event.name == "swapped" and version in self.trips:
            _served(self.trips[version], event.unix_ms)
        elif event.name in ("commanded", "scaled"):
            self._decide(event)
        if event.name not in _ORDINARY:
            told = self.told.setdefault((event.stage, event.name), Told())
            told.num += 1
            told.last_unix_ms, told.last = event.unix_ms, _text(event)

    @property
    def decisions(self) -> list[Decision]:
        """About the number of processes and about credit, oldest first; of many only those at either end."""
        return [*self._first, *self._last]

    def _decide(self, event: StageEvent) -> None:
        target, kind = event.details.get("target", ""), event.details.get("kind", "scale")
        if kind == "publish" or (kind != "credit" and not target.startswith(_SCALING)):
            return
        what = f"{kind} {target}"
        if "replicas" in event.details:
            what = f"{target}: {event.details['replicas']}"
        why = event.details.get("reason", event.details.get("why", ""))
        decision = Decision(unix_ms=event.unix_ms, who=event.stage, what=what, why=why)
        self.num_decisions += 1
        (self._first if len(self._first) < KEPT else self._last).append(decision)


def _served(trip: VersionTrip, unix_ms: int) -> None:
    trip.first_served_ms = unix_ms if trip.first_served_ms is None else min(trip.first_served_ms, unix_ms)
    trip.last_served_ms = unix_ms if trip.last_served_ms is None else max(trip.last_served_ms, unix_ms)


def _text(event: StageEvent) -> str:
    if text := event.details.get("text"):
        return text
    words = [f"{name} {value}" for name, value in event.details.items() if value]
    numbers = [f"{name} {value:g}" for name, value in event.gauges.items()]
    return ", ".join((*words, *numbers))
