"""Which processes joined a run after its end: to score its samples again, or to serve its weights.

Role: what such a process says is no part of the run's time, shares and process count; every fold of events asks here.
Data in: StageEvents in the order of their topic, when the run was sealed. Data out: whether one is of a late comer.
Invariants: a run is over when a seal is older than the event, or when all that took part have stopped by their own
word or were silent for `SILENT_MS`; what goes on with the run (a process that prompts, generates, trains or supervises)
makes late comers part of it. Memory is bounded by `MOST` names.
Failure: none. Times are of several clocks and inform people only (promise 13).
"""

from __future__ import annotations

from schemas.records import StageEvent

SILENT_MS = 60_000
MOST = 512
_FLOW = frozenset({"prompts", "rollout", "learner"})
_JOINS = frozenset({"reward", "reference", "evaluator", "peer"})  # stages that may come afterwards


class LateComers:
    """Call `add` with each event."""

    def __init__(self, *, sealed_ms: int | None = None) -> None:
        self.sealed_ms = sealed_ms  # None: not sealed, or not known
        self._heard_ms: dict[str, int] = {}  # those of the run that have not stopped
        self._ended: dict[str, None] = {}
        self._late: dict[str, None] = {}
        self._has_flowed = False

    def __contains__(self, instance: str) -> bool:
        return instance in self._late

    def add(self, event: StageEvent) -> bool:
        """Take one event; returns whether it is of a late comer."""
        instance = event.instance
        if instance in self._late:
            return True
        if instance in self._ended:
            return False
        if instance not in self._heard_ms and event.stage in _JOINS and self._is_over(event.unix_ms):
            _put(self._late, instance)
            return True
        if event.kind == "notice" and event.name == "stopped":
            self._heard_ms.pop(instance, None)
            _put(self._ended, instance)
            return False
        if event.stage not in _JOINS:
            self._late.clear()
            self._has_flowed = self._has_flowed or event.stage in _FLOW
        self._heard_ms.pop(instance, None)
        self._heard_ms[instance] = event.unix_ms
        if len(self._heard_ms) > MOST:
            del self._heard_ms[next(iter(self._heard_ms))]
        return False

    def _is_over(self, now_ms: int) -> bool:
        if self.sealed_ms is not None and now_ms > self.sealed_ms:
            return True
        return self._has_flowed and all(now_ms - heard_ms > SILENT_MS for heard_ms in self._heard_ms.values())


def _put(names: dict[str, None], name: str) -> None:
    names[name] = None
    if len(names) > MOST:
        del names[next(iter(names))]
