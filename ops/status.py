"""What every process of a run is doing, and how far each consumer group is behind.

Role: folds the end of the `events` topic, the ledger and the groups' offsets into one picture.
Data in: a broker and a run name. Data out: `RunStatus`.
Invariants: a process that said nothing for several heartbeats is not shown as at work; unknown lag is None and shown
as unknown, never as 0; ages compare the broker's record times with this machine's clock, for people only, and never go
below 0.
Failure: `RunNotFound`, errors of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ops.live.late import LateComers
from ops.replay.sources import KafkaSource, Window, decode
from ops.run_view import quiet_after_s, slot_key
from ops.runs import tail
from pipeline.history import LedgerView
from schemas.errors import CodecError
from schemas.records import LedgerSealed, LineageStarted, Outcome, PromptGroup, StageEvent, Version
from topics.catalog import EVENTS, LEDGER, PROMPTS, full_name
from topics.kafka.raw import RawLog
from topics.lag import partition_lag

EVENTS_LOOKED_AT = 5_000  # at the end of the topic
Standing = Literal[
    "at work", "not heard", "gone", "stopped"
]  # gone: not heard, and it has a successor or the run ended
KEY_GAUGES: Mapping[str, tuple[str, ...]] = {
    "prompts": ("groups_admitted", "open_groups", "credit_groups"),
    "rollout": ("running_sequences", "free_slots", "parked_sequences", "parked_return_s", "versions_behind"),
    "reward": ("breaker_open", "scored_per_s", "score_mean_s", "score_failure_share"),
    "evaluator": ("evaluation_mean", "evaluation_step", "evaluations_due"),
    "learner": ("step", "reward_mean", "ready_groups", "rank_ready_groups", "age_max"),
}


@dataclass(kw_only=True)
class ProcessStatus:
    """One process, by its last events."""

    stage: str
    instance: str
    phase: str = ""
    heartbeat_unix_ms: int | None = None  # None: none was seen
    heard_unix_ms: int = 0  # its newest event of any kind
    labels: Mapping[str, str] = field(default_factory=dict)  # what it says of itself with each heartbeat
    version: Version | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    stopped: bool = False
    is_late: bool = False  # joined after the run's end

    @property
    def name(self) -> str:
        """The stage, and the reward's name."""
        return f"{self.stage} {self.labels.get('reward', '')}".rstrip()

    @property
    def slot(self) -> tuple[str, ...] | None:
        """See `ops.run_view.slot_key`."""
        return slot_key(self.stage, instance=self.instance, labels=self.labels)

    def key_gauges(self) -> dict[str, float]:
        """The gauges that say most about this stage."""
        wanted = KEY_GAUGES.get(self.stage, ())
        plain = {name: self.gauges[name] for name in wanted if name in self.gauges}
        labelled = {name: self.gauges[name] for name in sorted(self.gauges) if name.partition("{")[0] in wanted}
        return {**plain, **labelled}


@dataclass(frozen=True, kw_only=True)
class GroupLag:
    """Lag of one consumer group on one topic, over its partitions."""

    group: str
    topic: str
    lag_records: int | None  # None: unknown for at least one partition
    num_unknown: int  # partitions


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The picture."""

    run: str
    processes: tuple[ProcessStatus, ...]  # by stage and instance
    lag: tuple[GroupLag, ...]
    lineage: int
    step: int
    num_closed: int
    num_prompts: int
    sealed: bool
    quiet_s: float  # silence after which a process counts as not heard

    def standing(self, process: ProcessStatus, *, now_ms: int) -> Standing:
        """Whether a process is at work, as far as its events tell."""
        if process.stopped:
            return "stopped"
        if not self._is_quiet(process, now_ms):
            return "at work"
        newer = (
            each
            for each in self.processes
            if each.slot == process.slot is not None and each.heard_unix_ms > process.heard_unix_ms
        )
        return "gone" if self.sealed or any(newer) else "not heard"

    def _is_quiet(self, process: ProcessStatus, now_ms: int) -> bool:
        return now_ms - process.heard_unix_ms > self.quiet_s * 1000

    @property
    def num_open(self) -> int:
        """Groups with a prompt and no outcome."""
        return max(0, self.num_prompts - self.num_closed)


def status_of(log: RawLog, run: str, *, heartbeat_s: float = 1.0) -> RunStatus:
    """The present state of a run.

    Args:
        log: a broker.
        run: its name.
        heartbeat_s: time between two heartbeats of a process.

    Raises:
        RunNotFound: it has no topics.
    """
    source = KafkaSource(log, run=run)
    counts = log.partition_counts()
    window = source.window(LEDGER)  # now, as the prompts are; a long ledger takes a while to read
    num_prompts = _num_prompts(log, run, num_partitions=counts.get(full_name(run, PROMPTS), 0))
    view = _ledger(source, window)
    sealed_ms = None if view.sealed is None else view.sealed.sealed_unix_ms
    return RunStatus(
        run=run,
        processes=processes_of(_events(log, run, counts=counts), sealed_ms=sealed_ms),
        lag=tuple(group_lags(log, run, counts=counts)),
        lineage=view.lineages.current,
        step=view.step,
        num_closed=view.num_closed,
        num_prompts=num_prompts,
        sealed=view.sealed is not None,
        quiet_s=quiet_after_s(heartbeat_s),
    )


def fold_event(processes: dict[str, ProcessStatus], event: StageEvent) -> None:
    """Take one event; those of an instance in their order."""
    process = processes.setdefault(event.instance, ProcessStatus(stage=event.stage, instance=event.instance))
    process.heard_unix_ms = max(process.heard_unix_ms, event.unix_ms)
    if event.version is not None:
        process.version = event.version
    if event.kind == "phase_began":
        process.phase = event.name
    elif event.kind == "heartbeat":
        process.heartbeat_unix_ms = event.unix_ms
        process.gauges = event.gauges
        process.labels = event.details
        process.phase = event.details.get("phase", process.phase)
    elif event.kind == "notice" and event.name == "stopped":
        process.stopped = True


def processes_of(events: Iterable[StageEvent], *, sealed_ms: int | None) -> tuple[ProcessStatus, ...]:
    """The processes, by stage and instance.

    Args:
        events: in the order of their topic.
        sealed_ms: when the run was sealed; None: it is not.
    """
    found: dict[str, ProcessStatus] = {}
    late = LateComers(sealed_ms=sealed_ms)
    for event in events:
        late.add(event)
        fold_event(found, event)
    for process in found.values():
        process.is_late = process.instance in late
    return tuple(sorted(found.values(), key=lambda process: (process.stage, process.instance)))


def _events(log: RawLog, run: str, *, counts: Mapping[str, int]) -> Iterator[StageEvent]:
    num_partitions = counts.get(full_name(run, EVENTS), 0)
    for record, _ in tail(log, run, topic=EVENTS, num_partitions=num_partitions, num_offsets=EVENTS_LOOKED_AT):
        if isinstance(record, StageEvent):
            yield record


def group_lags(log: RawLog, run: str, *, counts: Mapping[str, int]) -> list[GroupLag]:
    """Per group of the run, each topic it has committed a position of; one without any is unknown altogether."""
    lags = []
    prefix = f"rlweave.{run}."
    for group in log.groups(prefix):
        committed = log.committed(group)
        topics = sorted({topic for topic, _ in committed if topic in counts})
        if not topics:
            lags.append(GroupLag(group=group, topic="-", lag_records=None, num_unknown=0))
        for topic in topics:
            places = [(topic, partition) for partition in range(counts[topic])]
            ranges = log.ranges(places)
            found = [
                partition_lag(topic, place[1], committed=committed.get(place), retained=ranges[place]).lag_records
                for place in places
            ]
            known = [lag for lag in found if lag is not None]
            num_unknown = len(found) - len(known)
            lag = sum(known) if num_unknown == 0 else None
            lags.append(
                GroupLag(group=group, topic=topic.removeprefix(prefix), lag_records=lag, num_unknown=num_unknown)
            )
    return lags


def _ledger(source: KafkaSource, window: Window) -> LedgerView:
    view = LedgerView(source.data_partitions)
    for raw in source.read(LEDGER, window):
        try:
            record = decode(LEDGER, raw)
        except CodecError:
            continue
        if isinstance(record, Outcome | LineageStarted | LedgerSealed):
            view.add(raw.partition, record)
    return view


def _num_prompts(log: RawLog, run: str, *, num_partitions: int) -> int:
    """Numbers are dense, so the highest one tells."""
    prompts = tail(log, run, topic=PROMPTS, num_partitions=num_partitions)
    return max((record.group + 1 for record, _ in prompts if isinstance(record, PromptGroup)), default=0)
