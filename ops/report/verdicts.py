"""What the verdict of `ops.live` said of a run while it went on, and its numbers over time.

Role: the report stands on the fold that the live views stand on; here it is looked at as time passes on the log.
Data in: manifests, then StageEvents in the order of their topic. Data out: shares of time by verdict, series.
Invariants: a look every `LOOK_MS` at first; where there are more than `MOST_LOOKS` of them the time between two
doubles, so memory and time are bounded; time in which nothing was heard counts for no verdict, nor does the start, in
which a stage that comes was not heard yet.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.live.facts import facts_of
from ops.live.fold import RunFold
from ops.live.picture import RunPicture, SeriesPicture, Verdict
from ops.live.verdict import judge
from ops.run_file import RunFile
from ops.run_view import quiet_after_s
from schemas.records import Record, StageEvent

LOOK_MS = 5_000
MOST_LOOKS = 400
_NO_WORK = frozenset({"starting", "finished", "nobody", "stopped"})  # nothing flowed, so nobody waited for anybody
_FLOW = frozenset({"prompts", "rollout", "learner"})  # stages without which nothing flows


@dataclass(frozen=True, kw_only=True)
class Said:
    """One verdict over the run."""

    share: float  # of the time in which the pipeline flowed
    last: Verdict  # of this kind


@dataclass
class Verdicts:
    """Folds events. Call `add_manifest` for all manifests, then `add`.

    Args:
        run_file: settings of the run.
    """

    run_file: RunFile
    _spent_ms: dict[str, int] = field(default_factory=dict)  # by kind
    _before_ms: int = 0  # in which a stage of the pipeline was missing that had not been heard at all
    _last: dict[str, Verdict] = field(default_factory=dict)
    _num_looks: int = 0
    _every_ms: int = LOOK_MS
    _looked_ms: int | None = None

    def __post_init__(self) -> None:
        run = self.run_file.run
        self._quiet_s = quiet_after_s(run.heartbeat_s)
        self._fold = RunFold(run.name, data_partitions=run.partitions, facts=facts_of(self.run_file))

    def add_manifest(self, record: Record | None, *, unix_ms: int) -> None:
        """Take one record of the weights topic."""
        self._fold.add_manifest(record, unix_ms=unix_ms)

    def add(self, event: StageEvent) -> None:
        """Take one event."""
        self._fold.add_event(event, heard_s=event.unix_ms / 1000)
        now_ms = self._fold.newest_ms
        if self._looked_ms is None:
            self._looked_ms = now_ms
        elif now_ms - self._looked_ms >= self._every_ms:
            self._look(passed_ms=min(now_ms - self._looked_ms, 2 * self._every_ms))
            self._looked_ms = now_ms

    def said(self) -> tuple[Said, ...]:
        """Every verdict that was given, the most frequent first."""
        spent_ms = dict(self._spent_ms)
        if self._before_ms:  # they never came
            spent_ms["missing"] = spent_ms.get("missing", 0) + self._before_ms
        all_ms = sum(spent_ms.values())
        kinds = sorted(spent_ms, key=lambda kind: -spent_ms[kind])
        return tuple(Said(share=spent_ms[kind] / all_ms, last=self._last[kind]) for kind in kinds)

    def series(self) -> Mapping[str, SeriesPicture]:
        """Numbers over time, by name; see `ops.live.series`."""
        return self._picture().series

    def _look(self, *, passed_ms: int) -> None:
        picture = self._picture()
        verdict = judge(picture)
        if {each.stage for each in picture.processes} >= _FLOW:
            self._before_ms = 0
        elif verdict.kind == "missing":
            self._before_ms += passed_ms
            self._last[verdict.kind] = verdict
            return
        if verdict.kind not in _NO_WORK:
            self._spent_ms[verdict.kind] = self._spent_ms.get(verdict.kind, 0) + passed_ms
            self._last[verdict.kind] = verdict
        self._num_looks += 1
        if self._num_looks > MOST_LOOKS:
            self._num_looks //= 2
            self._every_ms *= 2

    def _picture(self) -> RunPicture:
        now_ms = self._fold.newest_ms
        return self._fold.picture(now_ms=now_ms, now_s=now_ms / 1000, quiet_s=self._quiet_s, spans_s=0.0)
