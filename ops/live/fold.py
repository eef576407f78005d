"""A run, folded from its records into a picture.

Role: the one fold that every view of a run stands on; knows no broker, no terminal and no clock.
Data in: events, ledger records and manifests, those of a partition in order. Data out: `RunPicture`.
Invariants: memory does not grow with the run but by 33 bytes per group (outcomes) and what `MOST_PROCESSES` processes
take; what a process says after its end changes nothing but a step, which was made; who joins after the run's end
(`ops.live.late`) moves neither its end nor its numbers. Of a run that is over nobody measures lag, so there is none.
Failure: none; a record that does not belong is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ops.live.flows import LagHistory, flows
from ops.live.ids import Ids
from ops.live.late import LateComers
from ops.live.notices import Notices
from ops.live.picture import ProcessPicture, RunFacts, RunPicture, Standing, Totals
from ops.live.process import ProcessFold, rank_of
from ops.live.series import SeriesFold
from ops.live.steps import Steps
from ops.live.versions import Versions, versions_behind
from ops.run_view import SINGLE
from pipeline.history import LedgerView
from schemas.errors import RecordInvalid
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, Record, StageEvent

MOST_PROCESSES = 256
MOST_EXACT = 64  # of these, with exact spans
WINDOW_S = 60.0
SETTLED_MS = 10_000  # after the learner's first step there is enough of the time since to speak of


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
        self._steps = Steps()
        self._admitted: float | None = None
        self._late = LateComers()
        self.newest_ms = 0

    def add_event(self, event: StageEvent, *, heard_s: float) -> None:
        """Take one event, heard at `heard_s` of the local monotonic clock."""
        process = self._processes.get(event.instance)
        if process is None:
            process = self._processes[event.instance] = ProcessFold(event)
            self._make_room()
        at_ms, is_late = process.at_ms(event), self._late.add(event)
        was_stopped = process.stopped
        if not is_late:
            self.newest_ms = max(self.newest_ms, event.unix_ms)
            if event.kind == "notice":
                self._hear(event, at_ms=at_ms)
        if was_stopped or not process.add(event):
            return
        self._heard_s[event.instance] = heard_s
        if is_late:
            return
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
            seal = self._ledger.sealed
            self._late.sealed_ms = None if seal is None else seal.sealed_unix_ms

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
        everybody = self._standings(now_s=now_s, quiet_s=quiet_s)
        late = {instance: standing for instance, standing in everybody.items() if instance in self._late}
        standings = {instance: standing for instance, standing in everybody.items() if instance not in late}
        afterwards = self._pictures(late, now_ms=now_ms, window_ms=round(WINDOW_S * 1000), spans_s=0.0)
        is_live = "at work" in standings.values()
        now_ms = now_ms if is_live or self.newest_ms == 0 else self.newest_ms
        window_ms, is_settled = self._window(standings, now_ms=now_ms)
        processes = self._pictures(standings, now_ms=now_ms, window_ms=window_ms, spans_s=spans_s)
        steps, versions = self._steps.picture(now_ms), self._versions.pictures()
        since_ms = now_ms - window_ms if is_settled else None
        behind = versions_behind(processes, versions)
        is_over = not is_live and share_read >= 1.0
        lag = () if is_over else self._lag.pictures(steps_per_s=steps.per_s, since_ms=since_ms, behind=behind)
        return RunPicture(
            run=self._run,
            now_ms=now_ms,
            is_live=is_live,
            share_read=share_read,
            window_s=window_ms / 1000,
            processes=processes,
            afterwards=afterwards,
            versions=versions,
            lag=lag,
            flows=flows(processes, lag=lag, steps_per_s=steps.per_s, behind=behind),
            commands=self._notices.commands(),
            notices=self._notices.notices(),
            drops=self._ids.reasons(),
            lost=self._ids.lost(),
            series=self._series.pictures(),
            totals=self._totals(),
            facts=self._facts,
            last_step=self._last_step,
            steps=steps,
            lately=self._ids.lately(),
            is_settled=is_settled,
        )

    def _hear(self, event: StageEvent, *, at_ms: int) -> None:
        self._notices.add(event, at_ms=at_ms)
        if event.stage != "learner" or event.name != "step":
            return
        self._steps.add(event, at_ms=at_ms)
        self._last_step = dict(event.gauges)
        self._series.add_step(event, at_ms=at_ms, steps=self._steps.picture(at_ms))

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
        newest = self._newest(standings)
        found = []
        for instance, standing in standings.items():
            process = self._processes[instance]
            is_last = process.slot is None or newest.get(process.slot, process.began_ms) <= process.began_ms
            seen = process.picture(
                standing,
                now_ms=now_ms,
                window_ms=window_ms,
                spans_since_ms=since_ms,
                is_replaced=standing in ("stopped", "gone") and not is_last,
            )
            found.append(seen)
        found.sort(key=lambda each: (rank_of(each.stage), each.name, each.slot, each.began_ms, each.instance))
        return tuple(found)

    def _newest(self, standings: Mapping[str, Standing]) -> dict[tuple[str, ...], int]:
        """Slot -> when the newest of its processes that are at work began."""
        found: dict[tuple[str, ...], int] = {}
        for instance, standing in standings.items():
            process = self._processes[instance]
            if standing == "at work" and process.slot is not None:
                found[process.slot] = max(found.get(process.slot, 0), process.began_ms)
        return found

    def _window(self, standings: Mapping[str, Standing], *, now_ms: int) -> tuple[int, bool]:
        """How far back shares go, and whether that leaves the start out.

        Not before the learner was past its start, nor, once there is enough after it, before its first step: until
        then everybody waits for the first weights, samples and groups, whoever is slow.
        """
        learners = [
            process
            for instance, process in self._processes.items()
            if process.stage == "learner" and standings[instance] == "at work" and process.flows_since_ms is not None
        ]
        most_ms = round(WINDOW_S * 1000)
        if not learners:
            return most_ms, True
        since_ms = max(each.flows_since_ms or 0 for each in learners)
        first_ms = self._steps.first_ms
        is_past = first_ms is not None and first_ms >= since_ms and now_ms - first_ms >= SETTLED_MS
        if is_past and first_ms is not None:
            since_ms = first_ms
        is_settled = is_past or not any(each.saw_start for each in learners)
        return max(1, min(most_ms, now_ms - since_ms)), is_settled

    def _make_room(self) -> None:
        """Of many processes, those that ended first, or were heard longest ago, keep coarse spans; of very many they
        go."""
        oldest = sorted(self._processes.values(), key=lambda each: (not each.stopped, each.heard_ms))
        for process in oldest[: max(0, len(oldest) - MOST_EXACT)]:
            process.spans.settle()
        for process in oldest[: max(0, len(oldest) - MOST_PROCESSES)]:
            del self._processes[process.instance]
            self._heard_s.pop(process.instance, None)
