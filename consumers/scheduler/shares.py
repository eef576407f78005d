"""What processes spent their time on lately: shares of phases, and of the slots of engines.

Role: who waits for whom, over a window, for policies and for people.
Data in: events, with the local monotonic time at which they were read. Data out: a share per (owner, phase), over all
processes of the owner (a stage, or a reward's consumer group); the share of slots in use, for what generates or will
again when its environment has answered.
Invariants: shares of one owner add up to at most 1; what was not heard is in none of them; time is local, and the spans
that senders measured only divide it (promise 13).
Failure: none; a span that is no finite number of 0 or more is left out, as are names beyond `MOST_NAMES`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from consumers.scheduler.snapshot import InstanceSeen, owner_of
from consumers.scheduler.stage_clock import PhaseKey, is_taken
from schemas.records import StageEvent


@dataclass
class _Life:
    """One process."""

    heard_s: float  # first
    spans: deque[tuple[float, str, float]] = field(default_factory=deque)  # end, phase, length
    used: deque[tuple[float, float]] = field(default_factory=deque)  # time of a heartbeat, share of its slots


class Shares:
    """Call `add` with each event, before it is folded into what is seen of its process.

    Args:
        window_s: shares are over this long.
    """

    def __init__(self, *, window_s: float) -> None:
        self._window_s = window_s
        self._lives: dict[str, _Life] = {}

    def add(self, event: StageEvent, *, now_s: float) -> None:
        """Take one event."""
        life = self._lives.setdefault(event.instance, _Life(heard_s=now_s))
        if event.kind == "phase_ended":
            spent_s = event.gauges.get("spent_s", math.nan)
            if math.isfinite(spent_s) and spent_s >= 0:
                life.spans.append((now_s, event.name, spent_s))
        elif event.kind == "heartbeat":
            share = _used(event)
            if share is not None:
                life.used.append((now_s, share))
        self._prune(life, oldest_s=now_s - self._window_s)

    def forget(self, instance: str) -> None:
        """The process is gone."""
        self._lives.pop(instance, None)

    def of_phases(self, instances: Iterable[InstanceSeen], *, now_s: float) -> dict[PhaseKey, float]:
        """Share of the window that the processes of an owner spent in a phase; absent: none of it."""
        spent: dict[PhaseKey, float] = {}
        there: dict[str, float] = {}
        for seen in instances:
            life = self._lives.get(seen.instance)
            if life is None:
                continue
            owner, begin_s = owner_of(seen), max(life.heard_s, now_s - self._window_s)
            there[owner] = there.get(owner, 0.0) + now_s - begin_s
            for phase, span_s in _within(life, seen, begin_s=begin_s, now_s=now_s):
                if is_taken((owner, phase), spent):
                    spent[owner, phase] = spent.get((owner, phase), 0.0) + span_s
        return {key: min(1.0, span_s / there[key[0]]) for key, span_s in spent.items() if there[key[0]] > 0}

    def of_slots(self, instances: Iterable[InstanceSeen], *, now_s: float) -> float | None:
        """Mean share of the engines' slots in use over the window; None: nobody has said so."""
        oldest_s = now_s - self._window_s
        lives = [self._lives[seen.instance] for seen in instances if seen.instance in self._lives]
        means = [
            sum(used) / len(used)
            for life in lives
            if (used := [share for at_s, share in life.used if at_s >= oldest_s])
        ]
        return sum(means) / len(means) if means else None

    @staticmethod
    def _prune(life: _Life, *, oldest_s: float) -> None:
        while life.spans and life.spans[0][0] < oldest_s:
            life.spans.popleft()
        while life.used and life.used[0][0] < oldest_s:
            life.used.popleft()


def _used(event: StageEvent) -> float | None:
    """Share of its slots that an engine has use for; None: it has not said so. What is parked will want its slot back:
    an engine that waits for environments is not idle."""
    running, free = event.gauges.get("running_sequences"), event.gauges.get("free_slots")
    parked = max(0.0, event.gauges.get("parked_sequences", 0.0))
    if running is None or free is None or running < 0 or free < 0 or running + free + parked <= 0:
        return None
    return (running + parked) / max(running + free, running + parked)


def _within(life: _Life, seen: InstanceSeen, *, begin_s: float, now_s: float) -> Iterable[tuple[str, float]]:
    """Phases and the time in them since `begin_s`. What a span claims beyond the end of the one before is not counted:
    phases do not nest."""
    last_s = begin_s
    for end_s, phase, span_s in life.spans:
        if end_s > last_s:
            yield phase, min(span_s, end_s - last_s)
            last_s = end_s
    if seen.phase and now_s > last_s:
        yield seen.phase, min(now_s - last_s, max(0.0, now_s - seen.phase_since_s))
