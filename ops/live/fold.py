"""A run, folded from its records into a picture.

Role: the one fold that every view of a run stands on; knows no broker, no terminal and no clock.
Data in: events, ledger records and manifests, those of a partition in order. Data out: `RunPicture`.
Invariants: memory does not grow with the run but by 33 bytes per group (outcomes) and what `MOST_PROCESSES` processes
take; what a process says after its end changes nothing but a step, which was made.
Failure: none; a record that does not belong is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ops.live.flows import LagHistory, flows
from ops.live.ids import Ids
from ops.live.notices import Notices
from ops.live.picture import ProcessPicture, RunFacts, RunPicture, Standing, Totals
from ops.live.process import ProcessFold, rank_of
from ops.live.series import SeriesFold
from ops.live.versions import Versions
from ops.run_view import SINGLE
from pipeline.history import LedgerView
from schemas.errors import RecordInvalid
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, Record, StageEvent

MOST_PROCESSES = 256
MOST_EXACT = 64  # of these, with exact spans
WINDOW_S = 60.0
STEPS_KEPT = 20


class RunFold:
    """Call `add_event`, `add_ledger` and `add_manifest`.

    Args:
        run: its name.
        data_partitions: P.
        facts: of its settings.
    """

    def __init__(self, run: str, *, data_partitions: int, facts: RunFacts) -> None:
        self._run = run
        self._facts = facts
        self._processes: dict[str, ProcessFold] = {}
        self._heard_s: dict[str, float] = {}  # local clock
        self._ids = Ids()
        self._ledger = LedgerView(data_partitions)
        self._versions = Versions()
        self._series = SeriesFold()
        self._notices = Notices()
        self._lag = LagHistory(run)
        self._last_step: Mapping[str, float] = {}
        self._steps: list[tuple[int, float]] = []  # when, which; of the last ones
        self._admitted: float | None = None
        self.newest_ms = 0

    def add_event(self, event: StageEvent, *, heard_s: float) -> None:
        """Take one event, heard at `heard_s` of the local monotonic clock."""
        process = self._processes.get(event.instance)
        if process is None:
            process = self._processes[event.instance] = ProcessFold(event)
            self._make_room()
        at_ms = process.at_ms(event)
        self.newest_ms = max(self.newest_ms, event.unix_ms)
        was_stopped = process.stopped
        if event.kind == "notice":
            self._hear(event, at_ms=at_ms)
        if was_stopped or not process.add(event):
            return
        self._heard_s[event.instance] = heard_s
        self._versions.add_event(event, at_ms=at_ms)
        if event.kind == "heartbeat":
            self._series.add_beat(process, at_ms=at_ms)
            if event.stage == "scheduler":
                self._lag.add(process.gauges, at_ms=at_ms)
            elif event.stage == "prompts" and "groups_admitted" in process.gauges:
                self._admitted = process.gauges["groups_admitted"]

    def add_ledger(self, record: Record | None, *, partition: int) -> None:
        """Take one record of the ledger."""
        self._ids.add(record)
        if isinstance(record, Outcome | LineageStarted | LedgerSealed):
            with suppress(RecordInvalid):
                self._ledger.add(partition, record)

    def add_manifest(self, record: Record | None, *, unix_ms: int) -> None:
        """Take one record of the weights topic."""
        if isinstance(record, Manifest):
            self._versions.add_manifest(record, unix_ms=unix_ms)

    def excuse(self, silent_s: float) -> None:
        """For so long nobody could be heard: that is nobody's silence."""
        for instance in self._heard_s:
            self._heard_s[instance] += silent_s

    def picture(
        self,
        *,
        now_ms: int,
        now_s: float,
        quiet_s: float,
        share_read: float = 1.0,
        spans_s: float | None = None,
    ) -> RunPicture:
        """The run as of now.

        Args:
            now_s: local monotonic clock.
            quiet_s: silence after which a process counts as not heard.
            share_read: for the picture.
            spans_s: only spans of so many last seconds; None: all that are kept.
        """
        if share_read < 1.0:  # so far it is as late as the last event that was read
            now_s = max(self._heard_s.values(), default=now_s)
            now_ms = self.newest_ms if self.newest_ms else now_ms
        standings = self._standings(now_s=now_s, quiet_s=quiet_s)
        is_live = "at work" in standings.values()
        now_ms = now_ms if is_live or self.newest_ms == 0 else self.newest_ms
        window_ms = self._window_ms(standings, now_ms=now_ms)
        processes = self._pictures(standings, now_ms=now_ms, window_ms=window_ms, spans_s=spans_s)
        steps_per_s = self.steps_per_s(now_ms)
        lag = self._lag.pictures(steps_per_s=steps_per_s)
        return RunPicture(
            run=self._run,
            now_ms=now_ms,
            is_live=is_live,
            share_read=share_read,
            window_s=window_ms / 1000,
            processes=processes,
            versions=self._versions.pictures(),
            lag=lag,
            flows=flows(processes, lag=lag, steps_per_s=steps_per_s),
            commands=self._notices.commands(),
            notices=self._notices.notices(),
            drops=self._ids.reasons(),
            lost=self._ids.lost(),
            series=self._series.pictures(),
            totals=self._totals(),
            facts=self._facts,
            last_step=self._last_step,
        )

    def steps_per_s(self, now_ms: int) -> float | None:
        """Of the last steps; None: there were not two within a few windows."""
        steps = [step for step in self._steps if step[0] >= now_ms - 5_000 * WINDOW_S]
        if len(steps) < 2 or steps[-1][0] <= steps[0][0]:
            return None
        passed_s = (max(now_ms, steps[-1][0]) - steps[0][0]) / 1000
        even_s = (steps[-1][0] - steps[0][0]) / 1000
        num = len(steps) - 1
        # A step that is long overdue makes the rate lower; one that is on its way does not.
        return num / even_s if passed_s - even_s <= 2 * even_s / num else num / passed_s

    def _hear(self, event: StageEvent, *, at_ms: int) -> None:
        self._notices.add(event, at_ms=at_ms)
        if event.stage != "learner" or event.name != "step":
            return
        step = event.gauges.get("step", 0.0)
        if self._steps and step <= self._steps[-1][1]:
            self._steps = []
        self._steps = [*self._steps, (at_ms, step)][-STEPS_KEPT:]
        self._last_step = dict(event.gauges)
        self._series.add_step(event, at_ms=at_ms)

    def _totals(self) -> Totals:
        ids, view = self._ids, self._ledger
        return Totals(
            lineage=view.lineages.current,
            step=view.step,
            groups_closed=view.num_closed,
            trained=ids.num(Result.TRAINED),
            dropped=ids.num(Result.DROPPED),
            failed=ids.num(Result.FAILED),
            groups_admitted=None if self._admitted is None else round(self._admitted),
            sealed=view.sealed is not None,
            ages=ids.ages(),
        )

    def _standings(self, *, now_s: float, quiet_s: float) -> dict[str, Standing]:
        newest: dict[tuple[str, ...], tuple[int, str]] = {}  # slot -> its newest process
        for process in self._processes.values():
            if (slot := process.slot) is not None and not process.stopped:
                newest[slot] = max(newest.get(slot, (0, "")), (process.began_ms, process.instance))
        found: dict[str, Standing] = {}
        for instance, process in self._processes.items():
            is_quiet = now_s - self._heard_s[instance] > quiet_s
            is_newest = process.slot is None or newest.get(process.slot, (0, instance))[1] == instance
            if process.stopped:
                found[instance] = "stopped"
            elif not is_newest and (is_quiet or process.stage in SINGLE):
                found[instance] = "gone"
            elif is_quiet:
                found[instance] = "gone" if self._ledger.sealed is not None else "not heard"
            else:
                found[instance] = "at work"
        return found

    def _pictures(
        self, standings: Mapping[str, Standing], *, now_ms: int, window_ms: int, spans_s: float | None
    ) -> tuple[ProcessPicture, ...]:
        since_ms = None if spans_s is None else now_ms - round(spans_s * 1000)
        found = [
            self._processes[instance].picture(standing, now_ms=now_ms, window_ms=window_ms, spans_since_ms=since_ms)
            for instance, standing in standings.items()
        ]
        found.sort(key=lambda each: (rank_of(each.stage), each.name, each.slot, each.began_ms, each.instance))
        return tuple(found)

    def _window_ms(self, standings: Mapping[str, Standing], *, now_ms: int) -> int:
        """How far back shares go: not before the learner was past its start, or that would count as waiting."""
        since = [
            process.flows_since_ms
            for instance, process in self._processes.items()
            if process.stage == "learner" and standings[instance] == "at work" and process.flows_since_ms is not None
        ]
        most_ms = round(WINDOW_S * 1000)
        return max(1, min(most_ms, now_ms - max(since))) if since else most_ms

    def _make_room(self) -> None:
        """Of many processes, those that ended first, or were heard longest ago, keep coarse spans; of very many they
        go."""
        oldest = sorted(self._processes.values(), key=lambda each: (not each.stopped, each.heard_ms))
        for process in oldest[: max(0, len(oldest) - MOST_EXACT)]:
            process.spans.settle()
        for process in oldest[: max(0, len(oldest) - MOST_PROCESSES)]:
            del self._processes[process.instance]
            self._heard_s.pop(process.instance, None)
