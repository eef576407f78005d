"""What an index keeps of an outcome, and the rows of its lists.

Data in: outcomes as they stand on the ledger. Data out: plain values, a few per outcome, member lost and gap.
Invariants: nothing of a record is held on to.
Failure: none; a gap that is no array of numbers is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple

import numpy as np

from schemas.errors import CodecError
from schemas.packed import unpack_f16
from schemas.reasons import Result
from schemas.records import MemberOutcome, Outcome
from topics.kafka.raw import RawRecord

NOTHING = -1  # an age or version that is not known


@dataclass(frozen=True, kw_only=True)
class OutcomeRow:
    """One outcome, by where it stands."""

    group: int
    partition: int
    offset: int
    at_ms: int  # of the broker
    lineage: int
    step: int
    result: str
    reason: str  # without its detail; empty: none
    is_void: bool  # of a branch that does not survive


@dataclass(frozen=True, kw_only=True)
class LostRow:
    """One sample id that was dropped or failed."""

    group: int
    member: int
    reason: str
    at_ms: int
    lineage: int
    step: int
    age: int | None
    born: str  # version; empty: not known


@dataclass(frozen=True, kw_only=True)
class ApartRow:
    """One trained sample of which the ledger tells how far trainer and sampler lie apart."""

    group: int
    member: int
    at_ms: int
    lineage: int
    step: int
    mean: float  # of |gap| over its trained tokens, nats
    most: float  # the largest |gap|


class Apart(NamedTuple):
    """What is kept of a gap."""

    member: int
    mean: float
    most: float


class Lost(NamedTuple):
    """What is kept of a member that was not trained."""

    member: int
    reason: str
    age: int
    born_lineage: int
    born_step: int


class Closed(NamedTuple):
    """What is kept of an outcome."""

    group: int
    offset: int
    at_ms: int
    lineage: int
    step: int
    result: str
    reason: str
    size: int
    lost: tuple[Lost, ...]
    apart: tuple[Apart, ...]


def closed(raw: RawRecord, outcome: Outcome) -> Closed:
    """What is kept of an outcome that stands at this place."""
    return Closed(
        group=outcome.group,
        offset=raw.offset,
        at_ms=raw.unix_ms,
        lineage=outcome.lineage,
        step=outcome.step,
        result=intern(str(outcome.result)),
        reason=_word(outcome.reason),
        size=len(outcome.members),
        lost=tuple(_lost(each) for each in outcome.members if each.result != Result.TRAINED),
        apart=tuple(_aparts(outcome.members)),
    )


def _aparts(members: Sequence[MemberOutcome]) -> Iterator[Apart]:
    """The gaps that are kept; one that is no array of numbers is not listed."""
    for member in members:
        if member.logprob_gap is None:
            continue
        with suppress(CodecError):
            sizes = np.abs(unpack_f16(member.logprob_gap).astype(np.float32))
            sizes = sizes[np.isfinite(sizes)]
            if sizes.size:
                yield Apart(member=member.member, mean=float(sizes.mean()), most=float(sizes.max()))


def _lost(member: MemberOutcome) -> Lost:
    return Lost(
        member=member.member,
        reason=_word(member.reason),
        age=NOTHING if member.age is None else member.age,
        born_lineage=NOTHING if member.version is None else member.version.lineage,
        born_step=NOTHING if member.version is None else member.version.step,
    )


def _word(reason: str | None) -> str:
    """The word of a reason, without its detail."""
    return "" if reason is None else intern(reason.partition(":")[0].strip())
