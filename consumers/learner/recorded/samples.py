"""The recorded samples of each step, read beside the training.

Role: turns a recorded step into the batch it was.
Data in: `samples`, from the earliest record to the present end; the steps' groups, attempts and members. Data out:
`Batch`es, groups by number and members by member number, with the recorded rewards.
Invariants: read-only; only members that were trained are kept, and only until their step; the first copy of a sample
counts, as it did in the run. Above `limit_bytes` only the partitions that the present step waits for are read on.
Failure: `NotRepeatable` naming the samples that are not on the topic; `DeadlineExceeded` when the broker falls silent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from consumers.learner.batch import Batch, TrainGroup, TrainMember
from consumers.learner.recorded.history import (
    READ_ONLY,
    SILENT_LIMIT_S,
    RecordedGroup,
    RecordedStep,
    behind,
    repeatable,
    until_hint,
)
from schemas.errors import NotRepeatable, RecordInvalid
from schemas.records import ReferenceScore, Sample, birth_version, sample_id
from schemas.validation import check_sample
from topics.catalog import REFERENCE_SCORES, SAMPLES, partition_of
from topics.clock import Deadline
from topics.log import Envelope, Log, ReaderSettings, TopicPartition

_POLL_S = 0.5
_POLL_RECORDS = 500
_NAMED = 3  # most sample ids in a message


class RecordedSamples:
    """Reads samples as far as the steps need them.

    Args:
        steps: in the order in which they will be asked for.
        limit_bytes: encoded bytes kept above which other partitions wait.
        scored: lineages that trained with what the reference model said of the samples, which is read as well.
    """

    def __init__(
        self, log: Log, steps: Sequence[RecordedStep], *, limit_bytes: int, scored: Collection[int] = ()
    ) -> None:
        self._log = log
        self._wanted = {group.group: group for step in steps for group in step.groups}
        self._limit_bytes = limit_bytes
        self._scored = frozenset(scored)
        self._topics = (SAMPLES, REFERENCE_SCORES) if self._scored else (SAMPLES,)
        self._found: dict[int, dict[int, Envelope]] = {}  # group -> member -> its sample
        self._scores: dict[int, dict[int, ReferenceScore]] = {}  # the same, of the reference model
        self.buffered_bytes = 0
        self._reader = log.reader(ReaderSettings(topics=self._topics), hooks=READ_ONLY)
        self._paused: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}

    def batch(self, step: RecordedStep) -> Batch:
        """The batch that made `step.version`.

        Raises:
            NotRepeatable: samples of it are not on the topic, or are not what was trained.
            DeadlineExceeded: the broker fell silent.
        """
        silent = Deadline.after(SILENT_LIMIT_S)
        while lacking := [group for group in step.groups if self._lacking(group, step)]:
            self._check_there(step, lacking)
            self._hold_back(lacking)
            silent.check(f"the samples of step {step.version.step}")
            for envelope in self._reader.poll(_POLL_RECORDS, deadline=Deadline.after(_POLL_S)):
                silent = Deadline.after(SILENT_LIMIT_S)
                self._keep(envelope)
        return Batch(step=step.version.step, groups=tuple(self._take(group, step) for group in step.groups))

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _lacking(self, group: RecordedGroup, step: RecordedStep) -> list[int]:
        """Members that were not found yet, or whose score was not."""
        found = self._of(group).keys()
        scored = self._scores.get(group.group, {}).keys() if step.version.lineage in self._scored else found
        return [member for member in group.members if member not in found or member not in scored]

    def _of(self, group: RecordedGroup) -> dict[int, Envelope]:
        return self._found.get(group.group, {})

    def _keep(self, envelope: Envelope) -> None:
        sample = envelope.record
        if not isinstance(sample, Sample | ReferenceScore):
            return
        group = self._wanted.get(sample.group)
        if group is None or sample.attempt != group.attempt or sample.member not in group.members:
            return
        if isinstance(sample, ReferenceScore):
            self._scores.setdefault(sample.group, {}).setdefault(sample.member, sample)
            return
        members = self._found.setdefault(sample.group, {})
        if sample.member not in members:
            members[sample.member] = envelope
            self.buffered_bytes += envelope.num_bytes

    def _take(self, group: RecordedGroup, step: RecordedStep) -> TrainGroup:
        del self._wanted[group.group]
        found = self._found.pop(group.group)
        self.buffered_bytes -= sum(envelope.num_bytes for envelope in found.values())
        scores = self._scores.pop(group.group, {}) if step.version.lineage in self._scored else {}
        members = tuple(
            replace(
                _member(found[member], reward, step=step.version.step),
                reference=scores[member].logprobs if member in scores else None,
            )
            for member, reward in zip(group.members, group.rewards, strict=True)
        )
        return TrainGroup(group=group.group, attempt=group.attempt, members=members, age=0)

    def _check_there(self, step: RecordedStep, lacking: Sequence[RecordedGroup]) -> None:
        """Raises: NotRepeatable: what is lacking lies on partitions that were read to their ends."""
        if not self._ends:
            self._ends = self._reader.end_positions()
        unread = behind(self._reader, self._ends)
        gone = [group for group in lacking if partition_of(group.group, self._log.data_partitions) not in unread]
        if not gone:
            return
        run = self._log.run
        ids = [
            f"{sample_id(run, group=group.group, member=member)} (attempt {group.attempt})"
            for group in gone
            for member in self._lacking(group, step)
        ]
        last = step.version.step - 1
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        raise NotRepeatable(
            f"step {step.version.step} trained samples that are not on topic "
            f"{' or '.join(topic.name for topic in self._topics)} any more: "
            f"{', '.join(ids[:_NAMED])}{more}; {repeatable(last)}",
            hint=until_hint(last),
        )

    def _hold_back(self, lacking: Sequence[RecordedGroup]) -> None:
        """Above the limit, let only the partitions be read that the present step lacks something of."""
        partitions = {partition_of(group.group, self._log.data_partitions) for group in lacking}
        needed = {(topic.name, partition) for topic in self._topics for partition in partitions}
        others = set(self._ends) - needed if self.buffered_bytes > self._limit_bytes else set()
        if self._paused - others:
            self._reader.resume(sorted(self._paused - others))
        if others - self._paused:
            self._reader.pause(sorted(others - self._paused))
        self._paused = others


def _member(envelope: Envelope, reward: float, *, step: int) -> TrainMember:
    sample = envelope.record
    if not isinstance(sample, Sample) or sample.failure is not None:
        raise NotRepeatable(f"step {step} trained what offset {envelope.offset} of samples has, which is no completion")
    try:
        check_sample(sample)
    except RecordInvalid as error:
        raise NotRepeatable(f"a sample that step {step} trained is damaged: {error.message}") from error
    return TrainMember(sample=sample, reward=reward, rewards=(), version=birth_version(sample.version_runs), age=0)
