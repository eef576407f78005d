"""What is no record: the one judgement both logs make about bytes a reader meets.

Data in and out: a value and the types its topic carries in; a record, or `CodecError`, out. The rejected bytes leave as
a `DeadLetter` with their origin; the reader's owner writes it.
"""

from __future__ import annotations

from schemas.codec import decode
from schemas.errors import CodecError
from schemas.records import DeadLetter, Record
from schemas.validation import check_possible
from topics.clock import SystemClock
from topics.log import Envelope

_clock = SystemClock()


def readable(value: bytes | None, record_types: tuple[type, ...], *, tombstones: bool) -> Record | None:
    """The record in `value`; None for a tombstone of a compacted topic.

    Raises:
        CodecError: undecodable, of a type this topic does not carry, without a value where that means nothing, or with
            numbers that no record of ours can have.
    """
    if value is None:
        if tombstones:
            return None
        raise CodecError("the record has no value, and the topic is not compacted, so it is no tombstone either")
    record = decode(value)
    if not isinstance(record, record_types):
        allowed = ", ".join(each.__name__ for each in record_types)
        raise CodecError(f"the topic carries {allowed}, got {type(record).__name__}")
    check_possible(record)
    return record


def dead_letter(
    origin: Envelope, *, value: bytes | None, run: str, full_topic: str, error: CodecError, reader: str
) -> DeadLetter:
    """The dead letter of bytes met at `origin` (whose own record is None)."""
    return DeadLetter(
        run=run,
        topic=full_topic,
        partition=origin.partition,
        offset=origin.offset,
        key=origin.key,
        value=value,
        headers=origin.headers,
        error=error.message,
        reader=reader,
        unix_ms=_clock.unix_ms(),
    )
