"""What is no record is kept as far as it fits, and is never decoded when it is too long."""

from __future__ import annotations

import pytest

from schemas.codec import encode
from schemas.errors import CodecError
from schemas.records import DeadLetter, Sample
from topics.catalog import DEAD_LETTERS
from topics.dead_letters import dead_letter, readable
from topics.log import Envelope

LIMIT = DEAD_LETTERS.max_record_bytes


def letter(value: bytes | None, *, key: bytes | None = b"k", headers: dict[str, bytes] | None = None) -> DeadLetter:
    origin = Envelope(
        topic="samples", partition=1, offset=7, key=key, record=None, headers=headers or {}, unix_ms=0, num_bytes=0
    )
    return dead_letter(
        origin, value=value, run="any", full_topic="rlweave.any.samples", error=CodecError("no record"), reader="me"
    )


def test_a_value_over_every_limit_is_not_decoded() -> None:
    with pytest.raises(CodecError, match="at most"):
        readable(bytes(DEAD_LETTERS.max_record_bytes + 1), (Sample,), tombstones=False)


@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        (bytes(LIMIT), b"k", {}),
        (b"v", bytes(LIMIT), {}),
        (None, b"k", {"h": bytes(LIMIT)}),
    ],
)
def test_a_dead_letter_fits_its_topic_whatever_was_met(
    value: bytes | None, key: bytes, headers: dict[str, bytes]
) -> None:
    kept = letter(value, key=key, headers=headers)
    assert len(encode(kept)) < DEAD_LETTERS.max_record_bytes
    assert "are kept here" in kept.error
    assert (kept.value is None) == (value is None)


def test_what_fits_is_kept_whole() -> None:
    kept = letter(b"v" * 1000, headers={"h": b"1"})
    assert (kept.value, kept.key, kept.headers, kept.error) == (b"v" * 1000, b"k", {"h": b"1"}, "no record")
