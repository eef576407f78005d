"""What routing needs of a record: its key, its ids, its policy version.

Role: the key and the part of the headers that tell a reader whether it wants to decode at all.
Data in and out: records in; short text in bytes out.
Invariants: a pure function of the record; the same record always has the same key.
Failure: none; what a record does not have is absent.
"""

from __future__ import annotations

from schemas.evaluation import Evaluation
from schemas.records import (
    Command,
    DeadLetter,
    LedgerSealed,
    LineageStarted,
    Manifest,
    Outcome,
    Partial,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    StageEvent,
    Version,
    birth_version,
    sample_id,
)

HEADER_FINGERPRINT = "fp"  # hex of the writer schema's fingerprint
HEADER_SAMPLE_ID = "sid"  # run/group/member, or run/group for records about a whole group
HEADER_VERSION = "ver"  # lineage.step


def key_of(record: Record) -> bytes:
    """The Kafka key: group number (decimal ASCII), instance, `target/kind`, `lineage.step`, or `set/lineage.step`.

    Ledger records that speak of no group have a word as key, which no group number equals. A dead letter keeps the key
    it came with; empty when it had none.
    """
    if isinstance(record, Sample | Reward | ReferenceScore | PromptGroup | Outcome | Partial):  # the hot ones
        return b"%d" % record.group
    if isinstance(record, DeadLetter):
        return b"" if record.key is None else record.key
    return _text_key(record).encode()


def _text_key(record: StageEvent | Command | Manifest | LineageStarted | LedgerSealed | Evaluation) -> str:
    match record:
        case StageEvent():
            return record.instance
        case Command():
            return f"{record.target}/{record.kind}"
        case Manifest():
            return str(record.version)
        case LineageStarted():
            return "lineage"
        case LedgerSealed():
            return "sealed"
        case Evaluation():
            return f"{record.name}/{record.version}"


def id_of(record: Record) -> str | None:
    """Sample id `run/group/member`; `run/group` for records about a group; None for others."""
    if isinstance(record, Sample | Reward | ReferenceScore):
        return sample_id(record.run, group=record.group, member=record.member)
    if isinstance(record, PromptGroup | Outcome | Partial):
        return f"{record.run}/{record.group}"
    return None


def version_of(record: Record) -> Version | None:
    """Birth version of a sample, or of a group given up, that has tokens; version of a manifest or an evaluation; None
    for others."""
    if isinstance(record, Sample) and record.version_runs:
        return birth_version(record.version_runs)
    if isinstance(record, Manifest | Evaluation):
        return record.version
    return record.born if isinstance(record, Partial) else None
