"""What the ranks of a learner say to each other: commands of rank 0, and what the others answer.

Role: JSON with a schema, and Avro for outcomes, which have one already.
Data in and out: frozen messages; bytes.
Invariants: what does not fit its schema is refused; nothing is executed, and no class is named by the bytes.
Failure: `CodecError`: ranks of two versions of the program, or a bug.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consumers.learner.batch import PlannedGroup
from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.ready import Offer
from consumers.learner.reports import Waiting
from schemas.codec import decode, encode
from schemas.errors import CodecError
from schemas.reasons import Result
from schemas.records import Outcome
from topics.log import Positions, TopicPartition

Count = Annotated[int, Field(ge=0)]
_HEAD_BYTES = 4


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_bytes(self) -> bytes:
        """As JSON."""
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """What `to_bytes` gave.

        Raises:
            CodecError: it does not follow the schema.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, found["loc"]))
            raise CodecError(
                f"a message between learner ranks is no {cls.__name__}: {where} {found['msg']}",
                hint="give every rank the same version of the program",
            ) from error


class Command(Message):
    """What rank 0 wants all ranks to do now."""

    do: Literal["read", "train", "take", "close", "clone", "cloned", "greet", "leave", "failed"]
    step: Count = 0  # of the learner; for "clone" the cloning step
    wait_s: float = Field(default=0.0, ge=0, le=60)  # "read": longest wait for a record
    engine_ready: bool = False  # "read"
    num_ready: Count = 0  # "read": complete groups over all ranks, when last counted
    closed: tuple[Count, ...] = ()  # "read": groups whose outcomes were taken since the last one
    groups: tuple[tuple[Count, Count, tuple[Count, ...]], ...] = ()  # "train": group, size, absent members
    text: str = ""  # "close": the reason; "leave" and "failed": why

    def plan(self) -> tuple[PlannedGroup, ...]:
        """The groups of the batch."""
        return tuple(PlannedGroup(group=group, size=size, absent=absent) for group, size, absent in self.groups)


class Summary(Message):
    """What a rank has, after a "read"."""

    num_ready: Count = 0
    num_open: Count = 0
    num_unclosed: Count = 0
    num_unsettled: Count = 0
    num_completed: Count = 0
    num_unwritten: Count = 0
    blocked: bool = False  # an open group that no cut may leave behind
    oldest_open_s: float = 0.0
    unsampled: Count = 0
    unscored: dict[str, Count] = Field(default_factory=dict)
    offered: tuple[tuple[int, Count, Count, tuple[Count, ...]], ...] = ()  # birth step, group, size, absent members
    stop: str = ""  # why this rank was asked to stop; empty: it was not

    def offers(self) -> list[Offer]:
        """The groups it could put into a batch."""
        return [
            Offer(birth_step=birth, group=group, size=size, absent=absent)
            for birth, group, size, absent in self.offered
        ]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a rank took note of, all at one moment."""

    drafts: list[OutcomeDraft]  # outcomes decided and not taken before
    positions: Positions  # where a restart must read from, for the rank's own partitions
    topic_ids: Mapping[str, str]  # topics these positions belong to, by name


class Report(Message):
    """`Taken` without the outcomes, which follow it as Avro."""

    places: tuple[tuple[str, Count, Count], ...] = ()  # topic, partition, offset
    topic_ids: dict[str, str] = Field(default_factory=dict)
    sizes: tuple[Count, ...] = ()  # bytes of each outcome behind this message

    def positions(self) -> dict[TopicPartition, int]:
        """By topic and partition."""
        return {(topic, partition): offset for topic, partition, offset in self.places}


def pack_report(taken: Taken) -> bytes:
    """Length of the JSON part, the JSON part, the outcomes one after the other."""
    bodies = [encode(_as_outcome(draft)) for draft in taken.drafts]
    places = tuple((topic, partition, offset) for (topic, partition), offset in taken.positions.items())
    head = Report(places=places, topic_ids=dict(taken.topic_ids), sizes=tuple(map(len, bodies))).to_bytes()
    return len(head).to_bytes(_HEAD_BYTES, "little") + head + b"".join(bodies)


def unpack_report(content: bytes) -> Taken:
    """What `pack_report` packed.

    Raises:
        CodecError: the lengths do not fit, or a part cannot be decoded.
    """
    begin = _HEAD_BYTES + int.from_bytes(content[:_HEAD_BYTES], "little")
    report = Report.parse(content[_HEAD_BYTES:begin])
    if len(content) != begin + sum(report.sizes):
        raise CodecError(f"a rank's report has {len(content)} bytes, its sizes say {begin + sum(report.sizes)}")
    drafts = []
    for size in report.sizes:
        drafts.append(_as_draft(decode(content[begin : begin + size])))
        begin += size
    return Taken(drafts=drafts, positions=report.positions(), topic_ids=report.topic_ids)


def waiting_of(summaries: Sequence[Summary]) -> Waiting:
    """What incomplete groups of all ranks lack."""
    unscored: dict[str, int] = {}
    for summary in summaries:
        for name, number in summary.unscored.items():
            unscored[name] = unscored.get(name, 0) + number
    return Waiting(
        num_open=sum(each.num_open for each in summaries),
        num_unsampled=sum(each.unsampled for each in summaries),
        num_unscored=unscored,
    )


def _as_outcome(draft: OutcomeDraft) -> Outcome:
    """Lineage, step, sequence number and time are given by the ledger, not here."""
    return Outcome(
        run="",
        group=draft.group,
        lineage=0,
        step=0,
        seq=0,
        result=draft.result,
        reason=draft.reason,
        attempt=draft.attempt,
        members=draft.members,
        closed_unix_ms=0,
    )


def _as_draft(record: object) -> OutcomeDraft:
    if not isinstance(record, Outcome):
        raise CodecError(f"a rank's report holds a {type(record).__name__} where an Outcome belongs")
    if record.result not in set(Result):
        raise CodecError(f"a rank's report holds an outcome with the result {record.result!r:.50}")
    return OutcomeDraft(
        group=record.group,
        result=Result(record.result),
        reason=record.reason,
        attempt=record.attempt,
        members=record.members,
    )
