"""Folds decoded records into the columns that the checks compare. No I/O.

Role: `add` takes one record of any audited topic, in the order of offsets within a partition; topics and partitions may
be interleaved in any way, but whoever reads a live run captures the ends of the ledger first (see `ops.audit.read`).
Data in: records with their place. Data out: the tables below, the ledger's own view, and what is half-visible.
Invariants: no decoded record is kept; adding changes no verdict by its order.
Failure: a record on a partition it does not belong to is a finding, not an error.

What cannot be found, since no topic speaks of it: the last outcomes of a partition of a run that was not sealed, a
prompt above every other number that nothing refers to, and a failed sample of an attempt that lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.audit.columns import NO_AGE, NO_KEY, Table, Words, attempted, identity, named, valued
from pipeline.history import LedgerView
from schemas.errors import RecordInvalid
from schemas.reasons import Result
from schemas.records import (
    LedgerSealed,
    LineageStarted,
    Manifest,
    MemberOutcome,
    Outcome,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    Version,
    birth_version,
)
from topics.catalog import LEDGER, PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, SHADOW_REWARDS, WEIGHTS, partition_of

# Each may refer to the ones after it, so ends are taken in this order.
AUDITED = (LEDGER, WEIGHTS, REWARDS, REFERENCE_SCORES, SAMPLES, PROMPTS)
Windows = Mapping[tuple[str, int], tuple[int, int]]  # (topic, partition) -> (earliest, end) offsets read


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a record was read."""

    topic: str  # short name
    partition: int
    offset: int


@dataclass
class Misplaced:
    """Records on a partition other than their group's."""

    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, why: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.examples) < 20:
            self.examples.append((what, why))


class Fold:
    """The state of an audit.

    Args:
        data_partitions: P of the run.
    """

    def __init__(self, data_partitions: int) -> None:
        self.data_partitions = data_partitions
        self.run = ""  # as the records say; a copy under another name keeps it
        self.ledger_view = LedgerView(data_partitions)
        self.words = Words()  # results and reasons
        self.reward_names = Words()
        self.ledger = Table("partition", "seq", "offset")
        self.outcomes = Table("group", "lineage", "step", "trained", "offset", "key_attempt")
        self.members = Table("outcome", "member", "key", "key_attempt", "result", "reason", "age", "lineage", "step")
        self.uses = Table("member_row", "name", "key_named", "key_valued")
        self.shadow = Table("name", "key")  # scored by a reward while it had no weight
        self.rewards = Table("group", "member", "name", "key", "key_named", "key_valued", "offset")
        self.scores = Table("group", "member", "key", "good", "offset")  # of the reference model
        self.samples = Table("group", "member", "key", "good", "lineage", "step", "offset")
        self.prompts = Table("group", "size", "offset")
        self.lineage_partitions: dict[int, set[int]] = {}
        self.seal_partitions: dict[int, set[int]] = {}
        self.lineages: dict[int, LineageStarted] = {}
        self.weights_seen: set[tuple[int, int]] = set()  # versions with a manifest or a tombstone
        self.published: frozenset[tuple[int, int]] = frozenset()  # versions seen before the ledger was read
        self.misplaced = Misplaced()
        self.undecodable: dict[str, int] = {}

    def add(self, place: Place, record: Record | None, *, key: bytes | None) -> None:
        """Take one record; None is a tombstone. Records of other types are ignored."""
        match record:
            case Sample():
                if self._belongs(place, record.group):
                    self._add_sample(place, record)
            case Reward():
                if self._belongs(place, record.group):
                    self._add_reward(place, record)
            case ReferenceScore():
                if self._belongs(place, record.group):
                    self._add_score(place, record)
            case PromptGroup():
                if self._belongs(place, record.group):
                    self.run = record.run
                    self.prompts.append(record.group, record.group_size, place.offset)
            case Outcome() | LineageStarted() | LedgerSealed():
                self._add_ledger(place, record)
            case Manifest():
                self.weights_seen.add((record.version.lineage, record.version.step))
            case None:
                self._add_tombstone(place, key)

    def add_undecodable(self, place: Place) -> None:
        """Count bytes that are no record."""
        self.undecodable[place.topic] = self.undecodable.get(place.topic, 0) + 1

    def note_published(self) -> None:
        """What is read of the ledger from here on must speak of every version seen so far."""
        self.published = frozenset(self.weights_seen)

    @property
    def unwritten(self) -> list[tuple[int, int]]:
        """Published versions of which the ledger knows neither a trained step nor a lineage that begins there."""
        trained = self.outcomes.ints("trained") == 1
        lineages, steps = self.outcomes.ints("lineage")[trained], self.outcomes.ints("step")[trained]
        known = {*zip(lineages.tolist(), steps.tolist(), strict=True)}
        known |= {(number, record.branch_step) for number, record in self.lineages.items()}
        return sorted(self.published - known)

    @property
    def ledger_is_ragged(self) -> bool:
        """Whether a lineage or seal is on some partitions only, or a published step is absent: damage, or a transaction
        becoming visible just now."""
        spread = (*self.lineage_partitions.values(), *self.seal_partitions.values())
        return any(len(partitions) != self.data_partitions for partitions in spread) or bool(self.unwritten)

    @property
    def weights_are_behind(self) -> bool:
        """Whether the newest trained step has no manifest: damage, or its transaction is becoming visible just now."""
        newest = (self.ledger_view.lineages.current, self.ledger_view.step)
        return bool(self.weights_seen) and newest[1] > 0 and newest not in self.weights_seen

    @property
    def prompts_are_ragged(self) -> bool:
        """Whether numbers are missing: damage, or a transaction becoming visible just now."""
        groups = self.prompts.ints("group")
        return bool(groups.size) and len(set(groups.tolist())) != int(groups.max()) + 1

    def _belongs(self, place: Place, group: int) -> bool:
        wanted = partition_of(group, self.data_partitions)
        if place.partition == wanted:
            return True
        where = f"{place.topic}[{place.partition}] offset {place.offset}"
        self.misplaced.add(where, f"a record of group {group}, which belongs on partition {wanted}")
        return False

    def _add_sample(self, place: Place, sample: Sample) -> None:
        key = identity(sample.group, sample.member, attempt=sample.attempt)
        good = int(sample.failure is None)
        lineage, step = _numbers(birth_version(sample.version_runs) if sample.version_runs else None)
        self.samples.append(sample.group, sample.member, key, good, lineage, step, place.offset)

    def _add_reward(self, place: Place, reward: Reward) -> None:
        key = identity(reward.group, reward.member, attempt=reward.attempt)
        if place.topic == SHADOW_REWARDS.name:
            self.shadow.append(self.reward_names.number(reward.name), key)
            return
        name = named(key, reward.name)
        value = NO_KEY if reward.value is None else valued(name, reward.value)
        number = self.reward_names.number(reward.name)
        self.rewards.append(reward.group, reward.member, number, key, name, value, place.offset)

    def _add_score(self, place: Place, score: ReferenceScore) -> None:
        key = identity(score.group, score.member, attempt=score.attempt)
        self.scores.append(score.group, score.member, key, int(score.failure is None), place.offset)

    def _add_ledger(self, place: Place, record: Outcome | LineageStarted | LedgerSealed) -> None:
        try:
            self.ledger_view.add(place.partition, record)
        except RecordInvalid as error:
            self.misplaced.add(f"{place.topic}[{place.partition}] offset {place.offset}", error.message)
            return
        self.run = record.run
        self.ledger.append(place.partition, record.seq, place.offset)
        match record:
            case LineageStarted():
                self.lineages[record.lineage] = record
                self.lineage_partitions.setdefault(record.lineage, set()).add(place.partition)
            case LedgerSealed():
                self.seal_partitions.setdefault(record.lineage, set()).add(place.partition)
            case Outcome():
                self._add_outcome(place, record)

    def _add_outcome(self, place: Place, outcome: Outcome) -> None:
        row = len(self.outcomes)
        trained = int(outcome.result == Result.TRAINED)
        attempt = attempted(outcome.attempt)
        self.outcomes.append(outcome.group, outcome.lineage, outcome.step, trained, place.offset, attempt)
        for member in outcome.members:
            self._add_member(row, outcome.group, member=member)

    def _add_member(self, row: int, group: int, *, member: MemberOutcome) -> None:
        key = NO_KEY if member.attempt is None else identity(group, member.member, attempt=member.attempt)
        result = self.words.number(str(member.result))
        reason = self.words.number(_word(member.reason))
        age = NO_AGE if member.age is None else member.age
        lineage, step = _numbers(member.version)
        member_row = len(self.members)
        attempt = attempted(member.attempt)
        self.members.append(row, member.member, key, attempt, result, reason, age, lineage, step)
        for use in member.rewards:
            name = named(key, use.name)
            number = self.reward_names.number(use.name)
            self.uses.append(member_row, number, name, valued(name, use.value))

    def _add_tombstone(self, place: Place, key: bytes | None) -> None:
        version = version_of_key(key) if place.topic == WEIGHTS.name else None
        if version is not None:
            self.weights_seen.add((version.lineage, version.step))


def version_of_key(key: bytes | None) -> Version | None:
    """The version a key of the `weights` topic names; None when it names none."""
    lineage, _, step = (key or b"").decode("ascii", errors="replace").partition(".")
    if not (lineage.isdecimal() and step.isdecimal()):
        return None
    return Version(lineage=int(lineage), step=int(step))


def _numbers(version: Version | None) -> tuple[int, int]:
    return (-1, -1) if version is None else (version.lineage, version.step)


def _word(reason: str | None) -> str:
    """The word of a reason, without its detail."""
    return "" if reason is None else reason.partition(":")[0].strip()
