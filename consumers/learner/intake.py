"""Reads prompts, samples and rewards into the assembler.

Role: the only I/O of the join. Per poll batch: read, join, count; then pause or resume, then end deadlines. `read`
takes poll batches until nothing is at hand: a batch that is cut, or a group that is evicted, is judged by all that has
arrived, not by the order in which partitions are read.
Data in: the three data topics, and `reference-scores` where a reference model scores; self-assigned: all partitions, or
those of a rank. Data out: records in the assembler,
positions for the checkpoint, commits for lag.
Invariants: truth is in the checkpoint; a failed commit only makes the lag look larger. A deadline ends a group only
after everything that was in the log at that moment has been read, so a long step of the learner never drops samples
that were there in time. Memory is bounded (promise 12): above `buffer_bytes` the samples are paused as long as a batch
can be cut, and above twice that in any case. A rank takes only records that are on their group's own partition: on
another one, another rank would answer for the same group.
Failure: errors of the reader go through; records lost to retention, or with a topic that was made anew, are told by the
context's hooks; `CheckpointError` when the topic made anew is `prompts`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from consumers.learner.assembler import Assembler
from consumers.learner.gaps import Gap
from consumers.learner.reports import LABELS
from consumers.learner.settings import LearnerSettings
from consumers.learner.topic_ids import known_topic_ids
from pipeline.flow import tell_ages
from pipeline.stage import TURN_S, StageContext
from schemas.errors import CheckpointError, LogError
from schemas.records import PromptGroup, ReferenceScore, Reward, Sample
from topics.catalog import PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, partition_of
from topics.clock import Deadline
from topics.log import Envelope, LostOffsets, Positions, ReaderSettings, RecreatedTopic, TopicPartition

TOPICS = (PROMPTS, SAMPLES, REWARDS)
_GROUPED = (PromptGroup, Sample, Reward, ReferenceScore)
MAX_RECORDS = 1000  # of one poll batch: some ms of work
_FEW_RECORDS = 32  # a poll that gives fewer has emptied what was at hand; of more than that, one hands over 64
_RESUME_SHARE = 0.9  # of buffer_bytes: reading goes on below it, so that pausing does not flutter


@dataclass(frozen=True, kw_only=True)
class _Barrier:
    """Where the log ended at some time on the deadline's clock."""

    at_s: float
    ends: Positions


def prompts_are_gone(context: StageContext, *, what: str) -> CheckpointError:
    """The refusal to go on with numbers of groups that mean other prompts by now."""
    return CheckpointError(
        f"{what} belongs to prompts that are gone: the topics of run {context.run.name} were made anew since; going on "
        "would hide new groups behind old numbers",
        hint=f"move {context.run.folder} away to train from the beginning, or choose another run.name",
    )


class Intake:
    """Feeds an assembler.

    Args:
        context: of the stage.
        assembler: is fed, and its deadlines are ended.
        settings: `buffer_bytes`.
        positions: where to read from, of the checkpoint; partitions without one are read from the earliest record.
        partitions: of this rank; None: all.
        has_reference: a reference model scores samples; its scores are read as well.
    """

    def __init__(
        self,
        context: StageContext,
        assembler: Assembler,
        *,
        settings: LearnerSettings,
        positions: Positions,
        partitions: tuple[int, ...] | None = None,
        has_reference: bool = False,
    ) -> None:
        self._context = context
        self._assembler = assembler
        self._buffer_bytes = settings.buffer_bytes
        self._partitions = partitions
        self._num_ready_elsewhere = 0
        self._ages_due_s = 0.0
        self._topics = (*TOPICS, REFERENCE_SCORES) if has_reference else TOPICS
        names = {topic.name for topic in self._topics}  # a checkpoint may be of a run with a reference model
        self._from = {
            place: at
            for place, at in positions.items()
            if place[0] in names and (partitions is None or place[1] in partitions)
        }
        self._reader = context.log.reader(
            ReaderSettings(
                topics=self._topics,
                group=f"rlweave.{context.run.name}.learner",
                positions=self._from,
                partitions=partitions,
                instance=context.instance,
            ),
            hooks=replace(context.hooks(), lost=self._lost, recreated=self._recreated),
        )
        for topic, partition in self._from:
            if topic == PROMPTS.name:
                self._expect_gap(partition)
        self._paused: tuple[TopicPartition, ...] = ()
        self._barrier: _Barrier | None = None
        self._topic_ids: dict[str, str] | None = None

    def read(self, *, wait_s: float, num_ready_elsewhere: int = 0) -> int:
        """Wait at most `wait_s` for a record, then pump until nothing more is at hand, or for `TURN_S`.

        Gives the number of records read. See `pump`.
        """
        clock, few = self._context.clock, min(_FEW_RECORDS, MAX_RECORDS)
        num_read = num_new = self.pump(
            deadline=Deadline.after(wait_s, clock=clock), num_ready_elsewhere=num_ready_elsewhere
        )
        turn = Deadline.after(TURN_S, clock=clock)
        while num_new >= few and not turn.expired:
            num_new = self.pump(deadline=Deadline.after(0.0, clock=clock), num_ready_elsewhere=num_ready_elsewhere)
            num_read += num_new
        return num_read

    def pump(self, *, deadline: Deadline, num_ready_elsewhere: int = 0) -> int:
        """Read one poll batch and do what follows from it; gives the number of records read.

        Tick the assembler before it, so that deadlines are judged by the present time.

        Args:
            deadline: of the wait for a record.
            num_ready_elsewhere: complete groups that other ranks hold.

        Raises:
            LogError: the reader failed in a way that retrying does not mend.
        """
        self._num_ready_elsewhere = num_ready_elsewhere
        envelopes = self._reader.poll(MAX_RECORDS, deadline=deadline)
        self._assembler.add_all(envelopes if self._partitions is None else filter(self._is_in_place, envelopes))
        self._balance()
        self._end_deadlines()
        self._report(Counter([envelope.topic for envelope in envelopes]))
        return len(envelopes)

    def positions(self) -> dict[TopicPartition, int]:
        """Where a restart must read from. Consistent with `Assembler.closed` when taken at the same moment."""
        return self._assembler.positions({**self._from, **self._reader.positions()})

    @property
    def topic_ids(self) -> dict[str, str]:
        """Broker ids of the topics the positions belong to."""
        if self._topic_ids is None:
            ids = known_topic_ids(self._context, {topic.name for topic in self._topics})
            found = {topic.name: ids[topic.name] for topic in self._topics if topic.name in ids}
            if len(found) < len(self._topics):  # one that was away for too long is asked for again the next time
                return found
            self._topic_ids = found
        return dict(self._topic_ids)

    def commit_for_lag(self) -> None:
        """Commit the positions for people and the scheduler; when that fails, say so and go on. Call after a step: the
        metrics are brought up to date as well."""
        self._report(Counter())
        self.commit(self.positions())

    def commit(self, positions: Positions) -> None:
        """Commit these, also of partitions that others read; when that fails, say so and go on."""
        try:
            self._reader.commit(positions)
        except LogError as error:
            self._context.events.notice("lag_commit_failed", details={"why": error.message})

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    @property
    def is_starved(self) -> bool:
        """Whether no full batch is ready, so that only reading, or a deadline, can free the buffer."""
        return self._assembler.num_ready + self._num_ready_elsewhere < self._context.run.groups_per_step

    def _lost(self, lost: LostOffsets) -> None:
        self._context.hooks().lost(lost)
        if lost.topic == PROMPTS.name:
            self._expect_gap(lost.partition)

    def _expect_gap(self, partition: int) -> None:
        """Prompts may be gone: just now, or before a restart, whose positions lie beyond them."""
        run = self._context.run
        gap = Gap(
            run=run.name,
            partition=partition,
            stride=run.partitions,
            group_size=run.group_size,
            most=run.credit_groups,
        )
        self._assembler.expect_gap(gap)

    def _recreated(self, topic: RecreatedTopic) -> None:
        """Positions are of the new topic from here on, and so is what the next checkpoint says of them."""
        self._context.hooks().recreated(topic)
        if topic.topic == PROMPTS.name:
            raise prompts_are_gone(self._context, what="what this learner did")
        if self._topic_ids is not None:
            self._topic_ids[topic.topic] = topic.topic_id
        self._from.pop((topic.topic, topic.partition), None)
        self._barrier = None  # it may name an end that nobody can reach any more

    def _is_in_place(self, envelope: Envelope) -> bool:
        record = envelope.record
        if (
            not isinstance(record, _GROUPED)
            or partition_of(record.group, self._context.run.partitions) == envelope.partition
        ):
            return True
        self._context.metrics.count("orphans", topic=envelope.topic)
        details = {"topic": envelope.topic, "partition": str(envelope.partition), "offset": str(envelope.offset)}
        self._context.events.notice("record_misplaced", details=details, group=record.group)
        return False

    def _balance(self) -> None:
        """Pause or resume the samples by what is buffered."""
        used = self._assembler.buffered_bytes
        limit = self._buffer_bytes * (2 if self.is_starved else 1)
        if not self._paused and used > limit:
            self._paused = tuple(each for each in self._reader.assignment() if each[0] == SAMPLES.name)
            self._reader.pause(self._paused)
            self._context.metrics.count("waits_over_limit", what="buffer_bytes")
            self._context.events.notice("buffer_full", buffered_bytes=used, limit_bytes=limit)
        elif self._paused and used <= limit * _RESUME_SHARE:
            self._reader.resume(self._paused)
            self._paused = ()

    def _end_deadlines(self) -> None:
        """1. A deadline ended: note the time and the present end of the log. 2. Read on up to that end.
        3. Close what was past its deadline at that time and is still not complete."""
        if not self._assembler.has_expired:
            self._barrier = None
            return
        if self._barrier is None:  # 1
            self._barrier = self._new_barrier()
        barrier = self._barrier
        if barrier is None or not (self._is_read(barrier.ends) or (self._paused and self.is_starved)):  # 2
            return
        self._barrier = None
        self._assembler.close_expired(at_s=barrier.at_s)  # 3

    def _new_barrier(self) -> _Barrier | None:
        try:
            return _Barrier(at_s=self._assembler.ready_time_s, ends=self._reader.end_positions())
        except LogError as error:  # the broker is away: nothing is dropped before it is known what the log holds
            self._context.events.notice("log_ends_unknown", details={"why": error.message})
            return None

    def _is_read(self, ends: Positions) -> bool:
        positions = self._reader.positions()
        return all(positions.get(place, 0) >= end for place, end in ends.items())

    def _report(self, num_read: Counter[str]) -> None:
        """Metrics and notices, once per poll batch."""
        metrics, assembler = self._context.metrics, self._assembler
        for topic, number in num_read.items():
            metrics.count("records_read", number, topic=topic)
        for (name, label), number in assembler.tally.take_counts().items():
            if name == "id_conflicts":
                metrics.count(name, number)
            else:
                metrics.count(name, number, **{LABELS.get(name, "topic"): label})
        for notice in assembler.tally.take_notices():
            self._context.events.notice(notice.name, details=notice.details, **notice.gauges)
        if self._partitions is None:
            metrics.gauge("open_groups", assembler.num_unclosed)
            metrics.gauge("ready_groups", assembler.num_ready)
        else:
            metrics.gauge("rank_open_groups", assembler.num_unclosed)
            metrics.gauge("rank_ready_groups", assembler.num_ready)
        metrics.gauge("oldest_open_group_s", assembler.oldest_open_s)
        metrics.gauge("buffered_bytes", assembler.buffered_bytes)
        now_s = self._context.clock.monotonic()
        if now_s >= self._ages_due_s:
            self._ages_due_s = now_s + self._context.run.heartbeat_s
            tell_ages(metrics, assembler.ready_ages(), kind="in_queue")
