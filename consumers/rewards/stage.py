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

from collections.abc import Sequence
from dataclasses import replace

from consumers.rewards import claim
from consumers.rewards.breaker import BreakerState
from consumers.rewards.opening import open_plugin
from consumers.rewards.plugin import fingerprint, version_with_options
from consumers.rewards.pool import Taken
from consumers.rewards.scoring import Scored, Scoring
from consumers.rewards.settings import RewardSettings, check_reward_name, group_id
from consumers.rewards.watch import Watch
from pipeline.stage import TURN_S, StageContext
from schemas.errors import RlweaveError
from schemas.records import Reward, Sample
from topics.catalog import REWARDS, SAMPLES, SHADOW_REWARDS
from topics.clock import Deadline
from topics.log import Envelope, ReaderSettings, TopicPartition, Writer, WriterSettings
from topics.queue import WorkQueue

BUSY_POLL_S = 0.005  # wait for records while the plug-in works: what a verdict waits at most
COMMIT_S = 0.2  # between two commits: what a crash makes the next process score again, at most
FLUSH_S = 30.0
PATIENCE_S = 1.0  # without room for this long, partitions are paused and polling goes on
RECHECK_S = 2.0  # after joining, to see whoever joined in the same moment


class RewardStage:
    """One process of the reward `name`."""

    @property
    def finished(self) -> bool:
        """False: it serves until it is told to stop."""
        return False

    def __init__(self, context: StageContext, *, name: str, settings: RewardSettings) -> None:
        check_reward_name(name)
        self._context = context
        self._name = name
        self._settings = settings
        self._group = ""  # known when the plug-in is
        self._most_in_flight = settings.max_in_flight
        self._num_values = self._num_failed = 0
        self._topic = SHADOW_REWARDS if settings.is_shadow else REWARDS
        self._version = ""  # of the plug-in, as records have it
        self._fingerprint = ""
        self._scoring: Scoring | None = None
        self._queue: WorkQueue
        self._writer: Writer
        self._watch: Watch
        self._commit_s = self._room_s = 0.0
        self._recheck_s: float | None = None

    def start(self, *, deadline: Deadline) -> None:  # noqa: ARG002 - nothing here waits
        """Load the plug-in, claim the group id, join.

        Raises:
            PluginError, SettingsError: the plug-in or its options are wrong.
            LeaseHeld: another plug-in is live under this group id.
        """
        context, settings = self._context, self._settings
        self._watch = Watch(context, name=self._name, settings=settings)
        opened = open_plugin(settings, is_stopped=lambda: context.stop.requested, on_lost=self._watch.lost_process)
        if opened is None:  # told to stop
            return
        self._version = version_with_options(opened.version, settings.options)
        self._fingerprint = fingerprint(self._name, settings, version=opened.version)
        self._group = self._group_of(self._fingerprint)
        try:
            claim.check_free(context.log.admin(), self._group, fingerprint=self._fingerprint)
            self._writer = context.log.writer(WriterSettings(linger_ms=1.0))
            self._queue = self._open_queue()
        except RlweaveError:
            opened.pool.close()
            raise
        context.metrics.gauge("reward_required", int(settings.required and not settings.is_shadow))
        context.metrics.gauge("reward_weight", settings.weight, reward=self._name, group=self._group)
        self._see_again(())
        self._watch.begin()
        self._scoring = Scoring(opened.pool, settings, batches=opened.batches, clock=context.clock)

    def turn(self) -> None:
        """Take what there is room for, collect verdicts, write, flush, commit."""
        scoring = self._started()
        limit = self._most_to_take(scoring)
        envelopes: Sequence[Envelope] = ()
        if self._is_full_for_a_moment(limit):
            self._settle(scoring.step(wait_s=BUSY_POLL_S))
        else:
            envelopes = self._queue.take(limit, deadline=self._after(self._wait_s(scoring)))
            self._take(envelopes, scoring=scoring)
            self._settle(scoring.step())
        self._watch.look(scoring, starved=limit == 1 and not envelopes)
        self._watch_claim()

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
            self._queue.close()
            self._writer.close(deadline=deadline)

    @property
    def num_scored(self) -> tuple[int, int]:
        """Samples with a value and with a failure, written and acknowledged by this process."""
        return self._num_values, self._num_failed

    def _open_queue(self) -> WorkQueue:
        context = self._context
        client_id = claim.client_id(context.instance, name=self._name, fingerprint=self._fingerprint)
        settings = ReaderSettings(
            topics=(SAMPLES,),
            assign="group",
            group=self._group,
            start=self._settings.start,
            instance=context.instance,
            client_id=client_id,
        )
        hooks = replace(context.hooks(), assigned=self._see_again, revoked=self._revoked)
        most = self._most_in_flight
        return WorkQueue.open(context.log, settings, hooks=hooks, max_in_flight=most, clock=context.clock)

    def _group_of(self, fingerprint: str) -> str:  # noqa: ARG002 - scoring the past has a group per fingerprint
        """The consumer group id."""
        return group_id(self._context.run.name, self._name, settings=self._settings)

    def _started(self) -> Scoring:
        if self._scoring is None:
            raise RuntimeError("a turn before the start")
        return self._scoring

    def _after(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, clock=self._context.clock)

    def _wait_s(self, scoring: Scoring) -> float:
        """How long to wait for records: little while verdicts are on their way."""
        if scoring.num_running:
            return BUSY_POLL_S
        until_retry_s = scoring.next_retry_s()
        return TURN_S if until_retry_s is None else min(TURN_S, until_retry_s)

    def _is_full_for_a_moment(self, limit: int) -> bool:
        """Whether to wait for verdicts instead of polling: a poll with no room pauses, which costs what was fetched."""
        now_s = self._context.clock.monotonic()
        if limit == 0 or self._queue.num_free > 0:
            self._room_s = now_s
        return self._queue.num_free <= 0 and limit > 0 and now_s < self._room_s + PATIENCE_S

    def _most_to_take(self, scoring: Scoring) -> int:
        """0 pauses the partitions: an open breaker takes nothing, a half-open one what it needs for its probe."""
        match scoring.state():
            case BreakerState.CLOSED:
                return self._most_in_flight
            case BreakerState.OPEN:
                return 0
            case BreakerState.HALF_OPEN:
                return 0 if scoring.num_unfinished else 1

    def _take(self, envelopes: Sequence[Envelope], *, scoring: Scoring) -> None:
        for envelope in envelopes:
            if isinstance(envelope.record, Sample) and envelope.record.failure is None:
                scoring.take((Taken(envelope=envelope, sample=envelope.record),))
            else:
                self._queue.done(envelope)
        if envelopes:
            self._context.metrics.count("records_read", len(envelopes), topic=SAMPLES.name)

    def _settle(self, scored: Sequence[Scored], *, commit_now: bool = False) -> None:
        """The commit protocol; the numbers are those of the module docstring."""
        kept = [one for one in scored if not one.taken.abandoned]
        if kept:
            for one in kept:
                self._writer.write(self._topic, self._reward(one))  # (1)
                self._watch.scored(one)
            self._writer.flush(deadline=self._after(FLUSH_S))  # (2)
            self._context.metrics.count("records_written", len(kept), topic=self._topic.name)
            num_failed = sum(one.verdict.failure is not None for one in kept)
            self._num_failed += num_failed
            self._num_values += len(kept) - num_failed
        for one in scored:
            self._queue.done(one.taken.envelope)
        now_s = self._context.clock.monotonic()
        if commit_now or now_s >= self._commit_s + COMMIT_S:
            self._commit_s = now_s
            self._queue.commit()  # (3)

    def _reward(self, scored: Scored) -> Reward:
        sample, found = scored.taken.sample, scored.verdict
        metrics = self._context.metrics
        metrics.count("samples_scored", result="value" if found.failure is None else "failed")
        metrics.observe("score_s", scored.duration_ms / 1000)
        scored_unix_ms = self._context.clock.unix_ms()
        metrics.observe("sample_hop_ms", scored_unix_ms - sample.finished_unix_ms, hop="made_scored")
        return Reward(
            run=sample.run,
            group=sample.group,
            member=sample.member,
            attempt=sample.attempt,
            name=self._name,
            plugin_version=self._version,
            weight=self._settings.weight,
            value=found.value,
            failure=found.failure,
            sample_offset=scored.taken.envelope.offset,
            scored_unix_ms=scored_unix_ms,
            duration_ms=scored.duration_ms,
            producer=self._context.instance,
        )

    def _see_again(self, _places: Sequence[TopicPartition]) -> None:
        """Members came or went: look at the claim again in a moment."""
        self._recheck_s = self._context.clock.monotonic() + RECHECK_S

    def _revoked(self, places: Sequence[TopicPartition]) -> None:
        """The queue has committed what is finished of these; the rest is their new owner's."""
        for taken in self._started().abandon(places):
            self._queue.done(taken.envelope)

    def _watch_claim(self) -> None:
        if self._recheck_s is None or self._context.clock.monotonic() < self._recheck_s:
            return
        self._recheck_s = None
        claim.check_still_ours(self._context.log.admin(), self._group, fingerprint=self._fingerprint)

    def _finish(self, scoring: Scoring, *, deadline: Deadline) -> None:
        reserve_s = min(5.0, deadline.limit_s / 4)  # for the flush and for leaving
        while deadline.remaining_s() > reserve_s and scoring.has_work_to_finish():
            self._settle(scoring.step())
            self._context.clock.wait(BUSY_POLL_S)
        self._settle(scoring.step(begin_more=False), commit_now=True)
