"""What is no record: the one judgement both logs make about bytes a reader meets.

Data in and out: a value and the types its topic carries in; a record, or `CodecError`, out. The rejected bytes leave as
a `DeadLetter` with their origin; the reader's owner writes it.
Invariants: a value over every topic's limit (compressed, such a one passes the broker) is not decoded, and a dead
letter always fits its own topic: of what does not, the beginning is kept.
"""

from __future__ import annotations

from schemas.codec import decode
from schemas.errors import CodecError
from schemas.records import DeadLetter, Record
from schemas.validation import check_possible
from topics.catalog import BY_NAME, DEAD_LETTERS, full_name
from topics.clock import SystemClock
from topics.log import Envelope, UnreadableBatch

_KEPT_BYTES = 64 * 1024  # of what is too long to be kept whole
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
    if len(value) > DEAD_LETTERS.max_record_bytes:
        raise CodecError(f"a value of {len(value)} bytes, at most {DEAD_LETTERS.max_record_bytes} are read")
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
    key, headers, said = origin.key, origin.headers, error.message
    around_bytes = len(key or b"") + sum(len(name) + len(text) for name, text in headers.items())
    if len(value or b"") + around_bytes > DEAD_LETTERS.max_record_bytes - _KEPT_BYTES:
        said = f"{said}; {len(value or b'')} bytes of value, only the first {_KEPT_BYTES} are kept here, and no headers"
        key, headers = None if key is None else key[:_KEPT_BYTES], {}
        value = None if value is None else value[:_KEPT_BYTES]
    return DeadLetter(
        run=run,
        topic=full_topic,
        partition=origin.partition,
        offset=origin.offset,
        key=key,
        value=value,
        headers=headers,
        error=said,
        reader=reader,
        unix_ms=_clock.unix_ms(),
    )


def letter_of_batch(batch: UnreadableBatch, *, run: str, reader: str) -> DeadLetter:
    """The dead letter of a whole batch, of which there are no bytes: where it was, and how many records it had."""
    return DeadLetter(
        run=run,
        topic=full_name(run, BY_NAME[batch.topic]),
        partition=batch.partition,
        offset=batch.first,
        error=(
            f"the {batch.num_lost} records at the offsets {batch.first} to {batch.end - 1} are in a batch that cannot "
            f"be unpacked: {batch.why}"
        ),
        reader=reader,
        unix_ms=_clock.unix_ms(),
    )
