"""A reward consumer: scores every sample of a run with one plug-in.

    samples -> [take] -> [score, retry, breaker] -> rewards (weight 0: shadow-rewards) -> flush -> commit

Role: one process of one reward; replicas share a consumer group of their own, so rewards know nothing of each other
and one that starts late scores everything from the first sample on.
Data in and out: Sample records in; one Reward record per sample out, with a value or a failure. A sample that is
itself a failure gets none: its member is terminal already, there is nothing to score.
Invariants: the commit protocol is (1) write the rewards, (2) wait until the broker has them, (3) commit the lowest
offset without one. `kill -9` anywhere makes the next process score some samples again, never lose one; the further
copies have the same key and the learner uses one.
Failure: the plug-in's are the sample's (`consumers.rewards.verdict`); those of the log end the process.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from consumers.rewards import claim
from consumers.rewards.breaker import BreakerState
from consumers.rewards.plugin import Scorer, fingerprint, load_scorer
from consumers.rewards.pool import Taken
from consumers.rewards.scoring import Scored, Scoring
from consumers.rewards.settings import RewardSettings, check_reward_name, group_id
from consumers.rewards.unfinished import Unfinished
from pipeline.stage import TURN_S, StageContext
from schemas.errors import Fenced, LogUnavailable
from schemas.records import Reward, Sample
from topics.catalog import REWARDS, SAMPLES, SHADOW_REWARDS
from topics.clock import Deadline
from topics.log import Envelope, Reader, ReaderSettings, TopicPartition, Writer, WriterSettings

BUSY_POLL_S = 0.005  # wait for records while the plug-in works: what a verdict waits at most
COMMIT_S = 0.2  # between two commits: what a crash makes the next process score again, at most
FLUSH_S = 30.0
STUCK_CHECK_S = 0.5
RECHECK_S = 2.0  # after joining, to see whoever joined in the same moment
_log = logging.getLogger(__name__)


class RewardStage:
    """One process of the reward `name`."""

    finished = False  # it serves until it is told to stop

    def __init__(self, context: StageContext, *, name: str, settings: RewardSettings) -> None:
        check_reward_name(name)
        self._context = context
        self._name = name
        self._settings = settings
        self._group = group_id(context.run.name, name, settings)
        self._topic = SHADOW_REWARDS if settings.is_shadow else REWARDS
        self._unfinished = Unfinished()
        self._paused: set[TopicPartition] = set()
        self._breaker = BreakerState.CLOSED
        self._fingerprint = ""
        self._scorer: Scorer
        self._scoring: Scoring | None = None
        self._reader: Reader
        self._writer: Writer
        self._busy_s = self._commit_s = self._stuck_s = context.clock.monotonic()
        self._recheck_s: float | None = None

    def start(self, *, deadline: Deadline) -> None:  # noqa: ARG002 - nothing here waits
        """Load the plug-in, claim the group id, join.

        Raises:
            PluginError, SettingsError: the plug-in or its options are wrong.
            LeaseHeld: another plug-in is live under this group id.
        """
        context, settings = self._context, self._settings
        self._scorer = load_scorer(settings)
        self._fingerprint = fingerprint(self._name, settings, version=self._scorer.version)
        claim.check_free(context.log.admin(), self._group, fingerprint=self._fingerprint)
        self._writer = context.log.writer(WriterSettings(linger_ms=1.0))
        self._reader = context.log.reader(
            ReaderSettings(
                topics=(SAMPLES,),
                assign="group",
                group=self._group,
                start=settings.start,
                client_id=claim.client_id(context.instance, name=self._name, fingerprint=self._fingerprint),
            ),
            hooks=replace(context.hooks(), assigned=self._assigned, revoked=self._revoked),
        )
        self._scoring = Scoring(self._scorer, settings, clock=context.clock)
        context.metrics.gauge("reward_weight", settings.weight, reward=self._name, group=self._group)
        context.metrics.gauge("breaker_open", 0)
        self._recheck_s = context.clock.monotonic() + RECHECK_S
        context.events.enter("waiting_for_samples")

    def turn(self) -> None:
        """Take what there is room for, collect verdicts, write, flush, commit."""
        scoring = self._running()
        room = self._settings.max_in_flight - scoring.num_unfinished
        self._pause_if(room <= 0 or self._breaker is not BreakerState.CLOSED)
        envelopes = self._reader.poll(max(1, room), deadline=self._after(self._poll_wait_s(scoring)))
        self._take(envelopes, scoring=scoring)
        self._settle(scoring.step())
        self._watch_breaker(scoring)
        self._watch_stuck(scoring)
        self._watch_claim()
        self._show_phase(scoring)

    def stop(self, *, deadline: Deadline) -> None:
        """Finish what was taken as far as the deadline allows, commit what is finished, leave the group.

        Samples that wait for another try, or are held by the breaker, are left to the next process.
        """
        if self._scoring is None:
            return
        try:
            self._finish(self._scoring, deadline=deadline)
        finally:
            self._scoring.close()
            self._reader.close()
            self._writer.close(deadline=deadline)

    def _running(self) -> Scoring:
        if self._scoring is None:
            raise RuntimeError("turn before start")
        return self._scoring

    def _after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, clock=self._context.clock)

    def _poll_wait_s(self, scoring: Scoring) -> float:
        if scoring.num_running:
            return BUSY_POLL_S
        until_retry_s = scoring.next_retry_s()
        return TURN_S if until_retry_s is None else min(TURN_S, until_retry_s)

    def _take(self, envelopes: Sequence[Envelope], *, scoring: Scoring) -> None:
        taken = [
            Taken(envelope=envelope, sample=envelope.record)
            for envelope in envelopes
            if isinstance(envelope.record, Sample) and envelope.record.failure is None
        ]
        for one in taken:
            self._unfinished.add(one)
        scoring.take(taken)
        if envelopes:
            self._context.metrics.count("records_read", len(envelopes), topic=SAMPLES.name)

    def _settle(self, scored: Sequence[Scored], *, commit_now: bool = False) -> None:
        """The commit protocol; the numbers are those of the module docstring."""
        if scored:
            for one in scored:  # (1)
                self._writer.write(self._topic, self._reward(one))
            self._writer.flush(deadline=self._after(FLUSH_S))  # (2)
            for one in scored:
                self._unfinished.done(one.taken)
            self._context.metrics.count("records_written", len(scored), topic=self._topic.name)
        if commit_now or self._context.clock.monotonic() >= self._commit_s + COMMIT_S:
            self._commit(self._reader.assignment())  # (3)

    def _commit(self, places: Sequence[TopicPartition]) -> None:
        self._commit_s = self._context.clock.monotonic()
        positions = {place: at for place, at in self._reader.positions().items() if place in places}
        due = self._unfinished.committable(positions)
        if not due:
            return
        try:
            self._reader.commit(due)
        except (Fenced, LogUnavailable) as error:  # theirs now, or later: no outcome depends on it
            _log.warning("offsets were not committed: %s", error.message)
            return
        self._unfinished.committed(due)

    def _reward(self, scored: Scored) -> Reward:
        sample, found = scored.taken.sample, scored.verdict
        metrics = self._context.metrics
        metrics.count("samples_scored", result="value" if found.failure is None else "failed")
        metrics.observe("score_s", scored.duration_ms / 1000)
        return Reward(
            run=sample.run,
            group=sample.group,
            member=sample.member,
            attempt=sample.attempt,
            name=self._name,
            plugin_version=self._scorer.version,
            weight=self._settings.weight,
            value=found.value,
            failure=found.failure,
            sample_offset=scored.taken.envelope.offset,
            scored_unix_ms=self._context.clock.unix_ms(),
            duration_ms=scored.duration_ms,
            producer=self._context.instance,
        )

    def _assigned(self, _places: Sequence[TopicPartition]) -> None:
        self._recheck_s = self._context.clock.monotonic() + RECHECK_S

    def _revoked(self, places: Sequence[TopicPartition]) -> None:
        """Commit what is finished of these, and leave the rest to their new owner."""
        self._commit(places)
        self._running().abandon(self._unfinished.forget(places))
        self._paused.difference_update(places)

    def _pause_if(self, full: bool) -> None:
        """Hold all partitions while there is no room; membership is kept, as polling goes on."""
        held = set(self._reader.assignment()) if full else set()
        if more := sorted(held - self._paused):
            self._reader.pause(more)
        if fewer := sorted(self._paused - held):
            self._reader.resume(fewer)
        self._paused = held

    def _watch_breaker(self, scoring: Scoring) -> None:
        state = scoring.state()
        if (state is BreakerState.CLOSED) is not (self._breaker is BreakerState.CLOSED):
            opened = state is not BreakerState.CLOSED
            self._context.metrics.gauge("breaker_open", int(opened))
            self._context.events.notice(
                "breaker_opened" if opened else "breaker_closed",
                details={"reward": self._name, "required": str(not self._settings.is_shadow).lower()},
                failure_share=scoring.breaker.failure_share,
            )
            self._context.events.heartbeat()  # the scheduler acts on the gauge: do not let it wait for the next one
        self._breaker = state

    def _watch_stuck(self, scoring: Scoring) -> None:
        now_s = self._context.clock.monotonic()
        if now_s < self._stuck_s + min(STUCK_CHECK_S, self._settings.stuck_after_s):
            return
        self._stuck_s = now_s
        for taken in scoring.stuck():
            at, sample = taken.envelope, taken.sample
            self._context.metrics.count("waits_over_limit", what="score")
            self._context.events.notice(
                "record_stuck",
                details={"topic": at.topic, "partition": str(at.partition), "reward": self._name},
                offset=at.offset,
                group=sample.group,
                member=sample.member,
                waited_s=now_s - (taken.started_s if taken.started_s is not None else now_s),
            )

    def _watch_claim(self) -> None:
        if self._recheck_s is None or self._context.clock.monotonic() < self._recheck_s:
            return
        self._recheck_s = None
        claim.check_still_ours(self._context.log.admin(), self._group, fingerprint=self._fingerprint)

    def _show_phase(self, scoring: Scoring) -> None:
        """Say `waiting_for_samples` only after a moment without any, or each sample would be two phases."""
        now_s = self._context.clock.monotonic()
        if self._breaker is not BreakerState.CLOSED:
            self._context.events.enter("breaker_open")
        elif scoring.num_unfinished:
            self._busy_s = now_s
            self._context.events.enter("scoring")
        elif now_s >= self._busy_s + TURN_S:
            self._context.events.enter("waiting_for_samples")

    def _finish(self, scoring: Scoring, *, deadline: Deadline) -> None:
        reserve_s = min(5.0, deadline.limit_s / 4)  # for the flush and for leaving
        while deadline.remaining_s() > reserve_s and scoring.has_work_to_finish():
            self._settle(scoring.step())
            self._context.clock.wait(BUSY_POLL_S)
        self._settle(scoring.step(begin_more=False), commit_now=True)
