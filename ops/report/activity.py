"""What the processes of a run did, from their events: who took part, where time went, steps.

Data in: StageEvents, in order per instance. Data out: shares of time, one entry per step.
Invariants: only those of the run itself are given to it (`ops.live.late`); time between two events of an instance
belongs to the phase it was in, so a process that was killed counts up to its last event; differences are of the
instance's own monotonic clock and clamp at 0 (promise 13). Steps of abandoned branches are left out. Numbers over
time are those of `ops.live` (`ops.report.verdicts`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from ops.run_view import pid_of
from pipeline.history import Lineages
from schemas.records import StageEvent, Version

_HEARD_MS = 10_000  # width of the spans in which something was heard
_PAUSE_MS = 60_000  # of silence of all processes, at least, that counts as a pause of the run


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that took part."""

    stage: str
    instance: str
    pid: int | None


def process_of(event: StageEvent) -> Process:
    """The one that said it."""
    return Process(stage=event.stage, instance=event.instance, pid=pid_of(event.instance))


@dataclass
class _Seen:
    phase: str = ""
    at_s: float | None = None


@dataclass
class Activity:
    """Folds events.

    Args:
        lineages: which versions survive.
    """

    lineages: Lineages
    processes: dict[str, Process] = field(default_factory=dict)
    phase_s: defaultdict[str, defaultdict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    steps: dict[int, dict[str, float]] = field(default_factory=dict)  # gauges of the step notices
    step_unix_ms: dict[int, int] = field(default_factory=dict)  # when each was told
    versions: set[Version] = field(default_factory=set)  # the learner said it reached them
    first_unix_ms: int | None = None
    last_step_unix_ms: int | None = None
    num_clock_skews: int = 0
    _heard: set[int] = field(default_factory=set)  # spans
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def add(self, event: StageEvent) -> None:
        """Take one event."""
        if self.first_unix_ms is None:
            self.first_unix_ms = event.unix_ms
        self._heard.add(event.unix_ms // _HEARD_MS)
        if event.instance not in self.processes:
            self.processes[event.instance] = process_of(event)
        self._spend(event)
        if event.stage == "learner" and event.version is not None:
            self.versions.add(event.version)
        if event.kind == "notice" and event.name == "step" and event.stage == "learner":
            self._step(event)

    def paused_ms(self, first_ms: int, last_ms: int) -> int:
        """Milliseconds between two times in which the run was stopped: none of its processes said anything."""
        spans = sorted(span for span in self._heard if first_ms <= span * _HEARD_MS <= last_ms)
        silent = ((after - before - 1) * _HEARD_MS for before, after in pairwise(spans))
        return sum(each for each in silent if each >= _PAUSE_MS)

    def shares(self) -> dict[str, dict[str, float]]:
        """Stage -> phase -> share of the stage's time in phases."""
        found: dict[str, dict[str, float]] = {}
        for stage, phases in sorted(self.phase_s.items()):
            total_s = sum(phases.values())
            if total_s > 0:
                found[stage] = {name: spent_s / total_s for name, spent_s in sorted(phases.items())}
        return found

    def _spend(self, event: StageEvent) -> None:
        seen = self._seen.setdefault(event.instance, _Seen())
        spent_s = 0.0 if seen.at_s is None else event.monotonic_s - seen.at_s
        self.num_clock_skews += spent_s < 0
        if seen.phase and spent_s > 0:
            self.phase_s[event.stage][seen.phase] += spent_s
        seen.at_s = event.monotonic_s
        if event.kind == "phase_began":
            seen.phase = event.name
        elif event.kind == "phase_ended":
            seen.phase = ""

    def _step(self, event: StageEvent) -> None:
        version = event.version
        if version is None or not self.lineages.survives(version.lineage, version.step):
            return
        self.steps[version.step] = dict(event.gauges)
        self.step_unix_ms[version.step] = event.unix_ms
        last = self.last_step_unix_ms
        self.last_step_unix_ms = event.unix_ms if last is None else max(last, event.unix_ms)
