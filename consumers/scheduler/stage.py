"""The scheduler: watches events, weights and lag, and commands what the policy decides.

    events (from now on), weights, ledger, lag -> Signals -> Snapshot -> decide -> Commands, in one transaction

Role: one live process per run. It starts nothing and stops nothing itself.
Data in and out: StageEvent, Manifest, ledger records and lag in; Command records out.
Invariants: commands are written in transactions of `rlweave.<run>.scheduler`, so a successor fences its predecessor
(promise 5), and only then reads what stands; its epoch is one above every epoch on the topic, `seq` is dense in it. A
decision follows every manifest, every event of the learner and every swap of an engine at once, and comes at least
every `interval_s`. A manifest that no trained step stands behind is not published, and named once.
Failure: `Fenced` when a newer one took over; a commit with an unknown result ends the process, the next one reads back
what happened. While it is away engines help themselves (design, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from consumers.scheduler.credit import LateAlarm
from consumers.scheduler.guarded import GuardedPolicy
from consumers.scheduler.lag_watch import LagWatch
from consumers.scheduler.pace import Pace
from consumers.scheduler.policy import BUILTINS, GROUP, CommandDraft, Policy
from consumers.scheduler.publish_cost import travel_bytes
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.signals import Signals
from consumers.scheduler.snapshot import REFERENCE, Scalable
from consumers.scheduler.standing import StandingCommands
from consumers.scheduler.topology import TopologySettings, placed
from pipeline.history import LedgerView
from pipeline.plugins import load_plugin
from pipeline.stage import TURN_S, StageContext
from pipeline.unbacked import UnbackedVersions
from schemas.errors import PluginError
from schemas.records import Command, LedgerSealed, LineageStarted, Manifest, Outcome, StageEvent, Version
from topics.catalog import COMMANDS, EVENTS, LEDGER, PROMPTS, SAMPLES, WEIGHTS, Topic, rollout_group
from topics.clock import Deadline
from topics.log import Envelope, Reader, ReaderSettings, TopicPartition, Writer, WriterSettings

_WRITE_S = 20.0  # longest wait for the commands of one decision: a slow broker is cheaper than another start
_MAX_RECORDS = 500  # of one poll
_IDLE_POLL_S = 0.05
NO_TOPOLOGY = TopologySettings()


class SchedulerStage:
    """See the module."""

    finished = False  # it serves until it is told to stop

    def __init__(
        self,
        context: StageContext,
        *,
        settings: SchedulerSettings,
        policy: Policy | None = None,
        fleet: tuple[Scalable, ...] = (),
        topology: TopologySettings = NO_TOPOLOGY,
    ) -> None:
        self._context = context
        self._settings = settings
        self._policy = policy
        self._fleet = fleet
        self._topology = topology
        self._guarded: GuardedPolicy
        self._ledger = LedgerView(context.log.data_partitions)
        self._signals = self._new_signals()
        self._unbacked = UnbackedVersions(context.clock)
        self._commands = StandingCommands(run=context.run.name)
        self._decided_s: float | None = None
        self._late = LateAlarm(self._too_late)
        self._pace = Pace(context.metrics, every_s=context.run.heartbeat_s)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._lag: LagWatch

    def start(self, *, deadline: Deadline) -> None:
        """Fence the predecessor, then read what stands.

        Raises:
            PluginError: the policy does not exist.
            DeadlineExceeded: commands, manifests or ledger could not be read in time.
            LogError: a forged command left no epoch.
        """
        context, settings = self._context, self._settings
        if self._policy is None:
            self._policy = load_policy(settings.policy)
        self._guarded = GuardedPolicy(self._policy, tell=self._policy_failed)
        self._writer = context.log.writer(
            WriterSettings(transactional_id=f"rlweave.{context.run.name}.scheduler", linger_ms=0.0)
        )
        self._writer.start(deadline=deadline)
        self._read_commands(deadline=deadline)
        self._signals = self._new_signals()
        self._reader = self._open_reader(deadline=deadline)
        self._lag = LagWatch(
            context.log.admin(),
            clock=context.clock,
            interval_s=settings.lag_interval_s,
            max_age_s=settings.lag_max_age_s,
        )
        context.events.enter("watching")
        context.events.notice("epoch", epoch=self._commands.epoch)

    def _new_signals(self) -> Signals:
        now_s = self._context.clock.monotonic()
        return Signals(began_s=now_s, ledger=self._ledger, rate_window_s=self._settings.rate_window_s)

    def turn(self) -> None:
        """Wait for something to happen, at most until the next decision is due; decide if it is."""
        if self._reader is None:
            raise RuntimeError("a turn before the start")
        urgent = self._fold(self._reader.poll(_MAX_RECORDS, deadline=self._after(self._wait_s())))
        self._watch_lag()
        self._name_unbacked()
        if urgent or self._wait_s() <= 0:
            self._decide()

    def stop(self, *, deadline: Deadline) -> None:
        """Leave. What was commanded stands."""
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.close(deadline=deadline)

    def _after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, clock=self._context.clock)

    def _wait_s(self) -> float:
        """Seconds until a decision is due."""
        if self._decided_s is None:
            return 0.0
        now_s, settings = self._context.clock.monotonic(), self._settings
        due_s = self._decided_s + min(settings.interval_s, settings.heartbeat_s)
        heartbeat_s = self._commands.standing.heartbeat_s
        if heartbeat_s is not None:
            due_s = min(due_s, max(heartbeat_s + settings.heartbeat_s, self._decided_s))
        return max(0.0, min(due_s - now_s, TURN_S))

    def _read_commands(self, *, deadline: Deadline) -> None:
        settings = ReaderSettings(topics=(COMMANDS,), instance=self._context.instance)
        reader = self._context.log.reader(settings, hooks=self._context.hooks())
        try:
            _read_to_end(reader, self._fold_commands, deadline=deadline, what="the commands in force")
        finally:
            reader.close()

    def _fold_commands(self, envelopes: Sequence[Envelope]) -> None:
        now_s = self._context.clock.monotonic()
        for envelope in envelopes:
            if isinstance(envelope.record, Command):
                self._commands.add(envelope.record, now_s=now_s)

    def _open_reader(self, *, deadline: Deadline) -> Reader:
        """One reader for all: weights and ledger from their beginnings, events from now on."""
        retained = self._context.log.admin().describe()
        positions: dict[TopicPartition, int] = {(EVENTS.name, 0): retained[EVENTS.name][0][1]}
        settings = ReaderSettings(
            topics=(EVENTS, WEIGHTS, LEDGER), positions=positions, instance=self._context.instance
        )
        reader = self._context.log.reader(settings, hooks=self._context.hooks())
        _read_to_end(reader, self._fold, deadline=deadline, what="the manifests and the ledger")
        return reader

    def _fold(self, envelopes: Sequence[Envelope]) -> bool:
        """Take records in; True when one of them calls for a decision at once."""
        urgent, horizon = False, self._ledger.horizon
        now_s = self._context.clock.monotonic()
        for envelope in envelopes:
            record = envelope.record
            if envelope.topic == WEIGHTS.name:
                self._fold_manifest(envelope, now_s=now_s)
                urgent = True
            elif isinstance(record, Outcome | LineageStarted | LedgerSealed):
                self._ledger.add(envelope.partition, record)
            elif isinstance(record, StageEvent):
                self._signals.add_event(record, now_s=now_s)
                urgent = urgent or _is_urgent(record)
        for gone in self._signals.forget_silent(now_s=now_s, after_s=self._settings.forget_s):
            self._context.events.notice("instance_gone", details={"instance": gone}, silent_s=self._settings.forget_s)
        return urgent or self._ledger.horizon != horizon

    def _fold_manifest(self, envelope: Envelope, *, now_s: float) -> None:
        if isinstance(envelope.record, Manifest):
            manifest = envelope.record
            self._signals.add_manifest(manifest.version, seen_s=now_s, num_bytes=travel_bytes(manifest))
        elif envelope.key is not None and (version := version_of_key(envelope.key)) is not None:
            self._signals.prune_manifest(version)

    def _name_unbacked(self) -> None:
        for version in self._unbacked.look(self._signals.listed, ledger=self._ledger):
            details = {"version": str(version), "trained": str(self._ledger.horizon)}
            self._context.events.notice("manifest_ignored", details=details)

    def _watch_lag(self) -> None:
        wanted: list[tuple[str, Topic]] = [(group, SAMPLES) for group in self._signals.reward_groups()]
        if self._settings.pack_below is not None or any(target.target == "rollout" for target in self._fleet):
            wanted.append((rollout_group(self._context.run.name), PROMPTS))
        wanted += [(target.group, SAMPLES) for target in self._fleet if target.target == REFERENCE]
        self._lag.refresh(wanted)
        for (group, topic), lag in self._lag.latest().items():
            if lag is None:
                self._context.metrics.absent("lag_records", group=group, topic=topic)
            else:
                self._context.metrics.gauge("lag_records", lag, group=group, topic=topic)

    def _decide(self) -> None:
        if self._writer is None:
            raise RuntimeError("a decision before the start")
        now_s = self._context.clock.monotonic()
        self._decided_s = now_s
        run = self._context.run
        snapshot = replace(
            self._signals.snapshot(now_s=now_s, lag=self._lag.latest(), standing=self._commands.standing),
            fleet=self._fleet,
            slots=run.slots,
            groups_per_step=run.groups_per_step,
            group_size=run.group_size,
            max_steps=run.max_steps,
            max_staleness=run.max_staleness,
        )
        drafts = placed(self._guarded.decide(snapshot, self._settings), snapshot, topology=self._topology)
        self._pace.tell(snapshot)
        if run.on_stale != "train":
            self._late.look(snapshot)
        if drafts:
            self._write(self._writer, drafts)
            for draft in drafts:
                self._tell(draft, now_s=now_s)

    def _too_late(self, lag: int, bound: int) -> None:
        text = (
            f"versions reach the engines {lag} versions late, and run.max_staleness = {bound}: what they make is too "
            "old at once; raise run.max_staleness, make publishing faster or steps longer"
        )
        self._context.events.notice("publish_too_late", details={"text": text}, lag=lag, max_staleness=bound)

    def _policy_failed(self, why: str) -> None:
        self._context.events.notice("policy_failed", details={"policy": self._settings.policy, "why": why})

    def _write(self, writer: Writer, drafts: Sequence[CommandDraft]) -> None:
        with writer.transaction(deadline=self._after(_WRITE_S)):
            for draft in drafts:
                writer.write(COMMANDS, self._commands.issue(draft, unix_ms=self._context.clock.unix_ms()))

    def _tell(self, draft: CommandDraft, *, now_s: float) -> None:
        self._commands.issued(draft, now_s=now_s)
        self._context.metrics.count("commands_issued", kind=draft.kind)
        if draft.kind != "heartbeat":
            version = None if draft.publish is None else draft.publish.version
            details = {"target": draft.target, "kind": draft.kind, "reason": draft.reason, "version": str(version)}
            if draft.replicas is not None:
                details["replicas"] = str(draft.replicas)
            self._context.events.notice("commanded", details=details)


def load_policy(spec: str) -> Policy:
    """A policy by name.

    Raises:
        PluginError: it does not exist, or cannot be called.
    """
    found = load_plugin(spec, group=GROUP, builtins=BUILTINS)
    if not callable(found):
        raise PluginError(
            f"policy {spec!r} is a {type(found).__name__}", hint="give a function (snapshot, settings) -> commands"
        )
    return cast("Policy", found)


def version_of_key(key: bytes) -> Version | None:
    """The version a key of the weights topic names (`lineage.step`); None when it names none."""
    lineage, _, step = key.decode("ascii", errors="replace").partition(".")
    if not (lineage.isdecimal() and step.isdecimal()):
        return None
    return Version(lineage=int(lineage), step=int(step))


def _is_urgent(event: StageEvent) -> bool:
    """Whether a decision should follow at once: a step boundary of the learner, a breaker, an engine that has loaded
    or left, which may be what the next wave waits for."""
    if event.stage == "learner":
        return event.kind in ("phase_began", "phase_ended")
    if event.stage == "rollout":
        return event.kind == "notice" and event.name in ("swapped", "stopped")
    return event.kind == "notice" and event.name in ("breaker_opened", "breaker_half_open", "breaker_closed")


def _read_to_end(
    reader: Reader, fold: Callable[[Sequence[Envelope]], object], *, deadline: Deadline, what: str
) -> None:
    """Fold everything up to the ends as they are now.

    Raises:
        DeadlineExceeded: naming `what`.
    """
    ends = reader.end_positions()
    while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
        deadline.check(what)
        fold(reader.poll(_MAX_RECORDS, deadline=Deadline.after(_IDLE_POLL_S, clock=deadline.clock)))
