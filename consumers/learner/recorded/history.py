"""What the ledger and the manifests say of a run's training: the steps that survive, and what came out of each.

Role: the plan of a repetition.
Data in: `ledger` and `weights`, read to their present ends. Data out: `RecordedHistory`.
Invariants: read-only, nothing is committed or written; outcomes of abandoned lineages are left out; of a run that goes
on, no step is taken of which the ledger may show a part only; groups of a step
are in the order of their numbers, members in the order of theirs. A version is compared even when its manifest was
given up since, as long as the topic still has it; the ledger's digest stays. Memory: 0.6 KB per trained group of 8
members, 0.9 KB of 16.
Failure: `NotRepeatable` naming what is missing and which steps can be repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.history import Lineages
from schemas.errors import NotRepeatable
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Manifest, MemberOutcome, Outcome, Version
from topics.catalog import LEDGER, WEIGHTS, Topic
from topics.clock import Deadline
from topics.log import Envelope, Log, Reader, ReaderHooks, ReaderSettings

SILENT_LIMIT_S = 60.0  # longest time without a record before the end is reached
_POLL_S = 0.5
_POLL_RECORDS = 2000
READ_ONLY = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)  # whoever read it first has told of it


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedGroup:
    """A group that a step trained on."""

    group: int
    attempt: str
    members: tuple[int, ...]  # ascending; those that were trained
    rewards: tuple[float, ...]  # of each: sum of weight * value


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A step of the surviving history."""

    version: Version  # what it made
    groups: tuple[RecordedGroup, ...]  # ascending group number


@dataclass(frozen=True, kw_only=True)
class RecordedDigest:
    """State digest of a version, where it is written."""

    version: Version
    place: str  # "ledger", "weights"
    digest: str


@dataclass(frozen=True, kw_only=True)
class RecordedHistory:
    """The surviving training of a run."""

    facts: Mapping[int, Mapping[str, str]]  # by lineage of the surviving path, ascending
    lineages: Lineages
    steps: Sequence[RecordedStep]  # 1, 2, ... without gaps
    digests: Mapping[int, Sequence[RecordedDigest]]  # by step, of surviving versions
    end: int  # last step the ledger knows; `steps` may end earlier

    @property
    def origin(self) -> int:
        """The lineage that began with the initial weights."""
        return next(iter(self.facts))


def read_history(log: Log, *, until_step: int | None = None) -> RecordedHistory:
    """Read a run's ledger and manifests.

    Args:
        until_step: the last step wanted; None: the last one there is.

    Raises:
        NotRepeatable: a topic or a record is missing, or no step was trained.
        DeadlineExceeded: the broker fell silent.
    """
    existing = log.admin().describe()
    absent = [topic.name for topic in (LEDGER, WEIGHTS) if topic.name not in existing]
    if absent:
        raise NotRepeatable(
            f"run {log.run} has no topic {absent[0]!r} on this broker, so nothing says what was trained",
            hint="`rlweave runs list` shows the runs there are",
        )
    fold = _read_ledger(log)
    fold.check_origin(log.run)
    steps = fold.steps(until_step=until_step)
    digests: dict[int, list[RecordedDigest]] = defaultdict(list)
    for digest in (*fold.digests(), *_manifests(log, fold.lineages)):
        digests[digest.version.step].append(digest)
    facts = {lineage: fold.facts[lineage] for lineage in sorted(fold.lineages.limits)}
    return RecordedHistory(facts=facts, lineages=fold.lineages, steps=steps, digests=digests, end=fold.end)


def read_to_end(log: Log, topic: Topic) -> Iterator[Envelope]:
    """All records of a topic that are there now.

    Raises:
        DeadlineExceeded: the broker fell silent.
    """
    reader = log.reader(ReaderSettings(topics=(topic,)), hooks=READ_ONLY)
    try:
        yield from _read_on(reader, topic)
    finally:
        reader.close()


def _read_on(reader: Reader, topic: Topic) -> Iterator[Envelope]:
    ends = reader.end_positions()
    silent = Deadline.after(SILENT_LIMIT_S)
    while behind(reader, ends):
        silent.check(f"topic {topic.name} to be read to its end")
        for envelope in reader.poll(_POLL_RECORDS, deadline=Deadline.after(_POLL_S)):
            silent = Deadline.after(SILENT_LIMIT_S)
            yield envelope


def _read_ledger(log: Log) -> _Fold:
    """Twice to its end: a transaction that is just being ended is readable on one partition before it is on another,
    so what the first round saw is completed by the second one, and what only that one saw is left out."""
    fold = _Fold()
    reader = log.reader(ReaderSettings(topics=(LEDGER,)), hooks=READ_ONLY)
    try:
        for envelope in _read_on(reader, LEDGER):
            fold.add(envelope)
        fold.no_more_steps()
        for envelope in _read_on(reader, LEDGER):
            fold.add(envelope)
    finally:
        reader.close()
    return fold


def behind(reader: Reader, ends: Mapping[tuple[str, int], int]) -> set[int]:
    """Partitions of which not all up to `ends` was read."""
    at = reader.positions()
    return {place[1] for place, end in ends.items() if at.get(place, 0) < end}


class _Fold:
    """The ledger, record by record."""

    def __init__(self) -> None:
        self.lineages = Lineages()
        self.facts: dict[int, Mapping[str, str]] = {}
        self._trained: dict[Version, list[RecordedGroup]] = defaultdict(list)
        self._digests: dict[Version, str] = {}
        self._last: dict[int, tuple[int, int]] = {}  # partition -> sequence number and step of the last record
        self._gaps: list[tuple[int, int, str]] = []  # first and last step that may lack outcomes, and why
        self._known: frozenset[Version] | None = None  # steps that are taken; None: all

    def add(self, envelope: Envelope) -> None:
        record = envelope.record
        if not isinstance(record, Outcome | LineageStarted | LedgerSealed):
            return
        step = record.branch_step if isinstance(record, LineageStarted) else record.step
        if not self._is_new(envelope.partition, record.seq, step=step):
            return  # a copy was appended
        if isinstance(record, Outcome) and record.result == Result.TRAINED:
            self._add_trained(record)
        elif isinstance(record, LineageStarted) and self.lineages.add(record):
            self.facts[record.lineage] = record.facts

    def no_more_steps(self) -> None:
        """From here on, records only complete the steps there are."""
        self._known = frozenset(self._trained)

    def check_origin(self, run: str) -> None:
        """Raises: NotRepeatable: the beginning of the surviving history is not in the ledger."""
        origin = min(self.lineages.limits, default=0)
        if origin == 0:
            raise NotRepeatable(f"the ledger of run {run} has no lineage; no learner ever began")
        if self.lineages.origins.get(origin, (1, 0))[0] != 0:
            raise NotRepeatable(
                f"the ledger of run {run} begins with lineage {origin}, which grew out of one that is gone; a "
                "repetition begins with the initial weights, so no step can be repeated"
            )

    @property
    def end(self) -> int:
        """The last surviving step."""
        return max((version.step for version in self._surviving()), default=0)

    def steps(self, *, until_step: int | None) -> list[RecordedStep]:
        """The wanted steps, all of them whole.

        Raises:
            NotRepeatable: they are not.
        """
        if self.end == 0:
            raise NotRepeatable("the ledger has no step that was trained; there is nothing to repeat")
        if until_step is not None and until_step > self.end:
            raise NotRepeatable(f"the ledger ends with step {self.end}, step {until_step} was never trained")
        by_step = {version.step: version for version in self._surviving()}
        last = self.end if until_step is None else until_step
        self._check_whole(by_step, last=last)
        return [
            RecordedStep(
                version=by_step[step],
                groups=tuple(sorted(self._trained[by_step[step]], key=lambda each: each.group)),
            )
            for step in range(1, last + 1)
        ]

    def digests(self) -> Iterator[RecordedDigest]:
        """What the ledger says of surviving versions."""
        for version in self._surviving():
            if version in self._digests:
                yield RecordedDigest(version=version, place="ledger", digest=self._digests[version])

    def _surviving(self) -> list[Version]:
        found = self._trained if self._known is None else self._known
        return [each for each in found if self.lineages.survives(each.lineage, each.step)]

    def _add_trained(self, outcome: Outcome) -> None:
        trained = [member for member in outcome.members if member.result == Result.TRAINED]
        version = Version(lineage=outcome.lineage, step=outcome.step)
        self._trained[version].append(
            RecordedGroup(
                group=outcome.group,
                attempt="" if outcome.attempt is None else outcome.attempt,
                members=tuple(member.member for member in trained),
                rewards=tuple(map(reward_of, trained)),
            )
        )
        if outcome.state_digest is not None:
            self._digests[version] = outcome.state_digest

    def _is_new(self, partition: int, seq: int, *, step: int) -> bool:
        last, last_step = self._last.get(partition, (-1, 1))
        if seq <= last:
            return False
        if seq > last + 1:
            what = f"ledger partition {partition} lacks {seq - last - 1} records before number {seq}"
            self._gaps.append((min(last_step, step), step, what))
        self._last[partition] = (seq, step)
        return True

    def _check_whole(self, by_step: Mapping[int, Version], *, last: int) -> None:
        problems = [(max(1, first), why) for first, end, why in self._gaps if end > 0]
        problems += [(step, f"no outcome of step {step} is left") for step in range(1, last + 1) if step not in by_step]
        problems += self._trained_twice(by_step)
        first, why = min(problems, default=(last + 1, ""))
        if first <= last:
            raise NotRepeatable(f"{why}; {repeatable(first - 1)}", hint=until_hint(first - 1))

    def _trained_twice(self, by_step: Mapping[int, Version]) -> Iterator[tuple[int, str]]:
        """The step that trained a group a second time, which the audit reports as well."""
        first: dict[int, int] = {}
        for step, version in sorted(by_step.items()):
            for group in self._trained[version]:
                if group.group in first:
                    yield step, f"group {group.group} was trained by steps {first[group.group]} and {step}"
                first.setdefault(group.group, step)


def reward_of(member: MemberOutcome) -> float:
    """What entered the loss: the sum of weight * value in the order of the names, as `RewardRule.combine` takes it."""
    return sum(use.weight * use.value for use in member.rewards)


def repeatable(last: int) -> str:
    """Which steps can be repeated, in words; `last`: the last one, 0: none."""
    return f"steps 1 to {last} can be repeated" if last > 0 else "no step can be repeated"


def until_hint(last: int) -> str:
    """What to do about it."""
    if last > 0:
        return f"give --until-step {last}"
    return "restore the topics from a copy of the run: `rlweave replay --to-run`, or --to-dump, made in time"


def _manifests(log: Log, lineages: Lineages) -> Iterator[RecordedDigest]:
    for envelope in read_to_end(log, WEIGHTS):
        record = envelope.record
        if isinstance(record, Manifest) and lineages.survives(record.version.lineage, record.version.step):
            yield RecordedDigest(version=record.version, place="weights", digest=record.state_digest)
