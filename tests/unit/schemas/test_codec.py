"""Records survive the wire unchanged, and bytes that are no record raise `CodecError` and nothing else."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import MARKER, decode, encode, fingerprint_of, headers_of, key_of, record_type_of
from schemas.errors import CodecError
from schemas.reasons import Result
from schemas.records import MemberOutcome, Outcome, PromptGroup, Record, Reward, Sample, Version
from schemas.registry import record_types
from tests.unit.schemas.examples import EXAMPLES, PROMPT, REWARD, SAMPLE, long_sample
from tests.unit.schemas.strategies import records_of

FRAMES = [encode(record) for record in EXAMPLES]
by_type = pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)


@pytest.mark.parametrize("name", sorted(record_types()))
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    record = cast("Record", data.draw(records_of(record_types()[name])))
    before = repr(record)
    frame = encode(record)
    assert repr(record) == before
    decoded = decode(frame)
    assert decoded == record
    assert repr(decoded) == before  # the same containers: tuples, not lists
    assert encode(decoded) == frame


@by_type
class TestFrame:
    def test_begins_with_marker_and_fingerprint(self, record: Record) -> None:
        frame = encode(record)
        assert frame[:10] == MARKER + fingerprint_of(type(record))
        assert record_type_of(frame) is type(record)

    def test_every_truncation_is_refused(self, record: Record) -> None:
        frame = encode(record)
        for length in range(len(frame)):
            with pytest.raises(CodecError):
                decode(frame[:length])

    def test_bytes_after_the_end_are_refused(self, record: Record) -> None:
        with pytest.raises(CodecError, match="1 bytes follow the end"):
            decode(encode(record) + b"\x00")

    def test_every_bit_flip_gives_a_record_or_codec_error(self, record: Record) -> None:
        frame = encode(record)
        for bit in range(len(frame) * 8):
            flipped = bytearray(frame)
            flipped[bit // 8] ^= 1 << bit % 8
            check_record_or_error(bytes(flipped))


def check_record_or_error(data: bytes) -> None:
    """Decode; a record must be of a record type and fit its own fields."""
    try:
        record = decode(data)
    except CodecError as error:
        assert str(error)  # noqa: PT017 - it is the whole point that nothing else is raised
    else:
        assert decode(encode(record)) is not None


@given(st.binary(max_size=200))
def test_any_bytes_give_a_record_or_codec_error(data: bytes) -> None:
    check_record_or_error(data)


@given(st.sampled_from(FRAMES), st.binary(max_size=200))
def test_any_body_gives_a_record_or_codec_error(frame: bytes, body: bytes) -> None:
    check_record_or_error(frame[:10] + body)


@given(st.sampled_from(FRAMES), st.integers(0, 400), st.binary(min_size=1, max_size=12))
def test_any_overwritten_stretch_gives_a_record_or_codec_error(frame: bytes, start: int, patch: bytes) -> None:
    check_record_or_error(frame[:start] + patch + frame[start + len(patch) :])


@pytest.mark.parametrize("frame", FRAMES, ids=[type(record).__name__ for record in EXAMPLES])
def test_forged_lengths_do_not_allocate(frame: bytes) -> None:
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^63 - 1
    tracemalloc.start()
    try:
        for start in range(10, len(frame)):
            check_record_or_error(frame[:start] + huge + frame[start:])
            _, peak_bytes = tracemalloc.get_traced_memory()
            assert peak_bytes < 1_000_000, f"at byte {start}"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "got 0 bytes in all"),
        (b"\xc3\x01abc", "got 5 bytes in all"),
        (b'{"run": "demo"}', "begins with the marker c301, got 7b22"),
        (MARKER + b"\x01\x02\x03\x04\x05\x06\x07\x08rest", "unknown schema fingerprint 0102030405060708"),
    ],
)
def test_what_is_no_frame_says_what_was_seen(data: bytes, said: str) -> None:
    assert record_type_of(data) is None
    with pytest.raises(CodecError, match=said):
        decode(data)


def test_another_record_than_expected_is_refused() -> None:
    assert decode(encode(REWARD), Reward) == REWARD
    with pytest.raises(CodecError, match="expected a Sample, got a Reward"):
        decode(encode(REWARD), Sample)


def test_non_finite_numbers_travel_unchanged() -> None:
    """Avro carries them without complaint; the check is `schemas.validation`'s."""
    decoded = decode(encode(dataclasses.replace(REWARD, value=float("nan"), weight=float("-inf"))), Reward)
    assert decoded.value is not None
    assert np.isnan(decoded.value)
    assert decoded.weight == float("-inf")


def test_records_of_one_frame_share_nothing() -> None:
    first, second = decode(FRAMES[1], Sample), decode(FRAMES[1], Sample)
    assert first.metadata is not second.metadata
    assert first.sampling is not second.sampling


def test_a_decoded_record_is_frozen_and_hash_free_of_lists() -> None:
    record = decode(encode(SAMPLE), Sample)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.group = 9  # type: ignore[misc]
    assert hash(record.version_runs) == hash(SAMPLE.version_runs)


def test_numpy_and_enum_values_are_written_as_what_they_mean() -> None:
    odd = dataclasses.replace(REWARD, group=cast("int", np.int64(7)), value=cast("float", np.float32(1.0)))
    assert encode(odd) == encode(REWARD)
    member = MemberOutcome(member=0, result=Result.TRAINED)
    outcome = Outcome(
        run="r", group=0, lineage=1, step=1, seq=0, result=Result.TRAINED, members=(member,), closed_unix_ms=0
    )
    decoded = decode(encode(outcome), Outcome)
    assert type(decoded.result) is str
    assert decoded == outcome


@pytest.mark.parametrize(
    "change",
    [
        {"group": 1.5},
        {"group": True},
        {"group": "7"},
        {"group": None},
        {"group": 2**63},
        {"run": None},
        {"run": b"demo"},
        {"run": "\ud800"},
        {"loss_mask": "text"},
        {"loss_mask": np.zeros(4, np.int32)},
        {"logprobs": [0.5]},
        {"sampling": None},
        {"sampling": Version(lineage=1, step=1)},
        {"sampling": dataclasses.replace(SAMPLE.sampling, temperature="hot")},  # type: ignore[arg-type]
        {"sampling": dataclasses.replace(SAMPLE.sampling, stop="abc")},  # type: ignore[arg-type]
        {"sampling": dataclasses.replace(SAMPLE.sampling, top_k=0.5)},  # type: ignore[arg-type]
        {"version_runs": None},
        {"version_runs": (None,)},
        {"metadata": {"a": 1}},
        {"metadata": {1: "a"}},
        {"metadata": [("a", "b")]},
        {"metadata": None},
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        encode(dataclasses.replace(SAMPLE, **change))


def test_what_is_no_record_is_refused() -> None:
    part = cast("Record", Version(lineage=1, step=1))
    with pytest.raises(CodecError, match="Version is not a record type; the record types are Command, DeadLetter"):
        encode(part)
    with pytest.raises(CodecError, match="Version is not a record type"):
        headers_of(part)


def test_headers_tell_what_routing_needs() -> None:
    fingerprint = fingerprint_of(Sample).hex().encode()
    assert headers_of(SAMPLE) == [("fp", fingerprint), ("sid", b"demo/7/3"), ("ver", b"1.5")]
    assert dict(headers_of(dataclasses.replace(SAMPLE, version_runs=()))).keys() == {"fp", "sid"}
    assert dict(headers_of(PROMPT))["sid"] == b"demo/7"
    versions = {type(record).__name__: dict(headers_of(record)).get("ver") for record in EXAMPLES}
    told = {name: version for name, version in versions.items() if version}
    assert told == {"Sample": b"1.5", "Partial": b"1.5", "Manifest": b"1.6", "Evaluation": b"1.6"}


def test_keys_follow_the_topic_table() -> None:
    keys = {type(record).__name__: key_of(record) for record in EXAMPLES}
    assert keys == {
        "PromptGroup": b"7",
        "Sample": b"7",
        "Partial": b"7",
        "Reward": b"7",
        "ReferenceScore": b"7",
        "Outcome": b"7",
        "LineageStarted": b"lineage",
        "LedgerSealed": b"sealed",
        "StageEvent": b"rollout-0",
        "Command": b"rollout/publish",
        "Manifest": b"1.6",
        "DeadLetter": b"7",
        "Evaluation": b"sums/1.6",
    }


def test_expected_type_is_what_the_caller_gets() -> None:
    prompt: PromptGroup = decode(encode(PROMPT), PromptGroup)
    sample: Sample = decode(encode(long_sample()), Sample)
    assert (prompt, sample) == (PROMPT, long_sample())


def test_the_same_bytes_are_refused_in_the_same_words() -> None:
    """Whatever the library says of where it holds them in memory."""
    frame = encode(SAMPLE)
    said = []
    for length in range(len(MARKER) + 8, len(frame)):
        with pytest.raises(CodecError) as refused:
            decode(frame[:length])
        said.append(refused.value.message)
    assert any("EOFError: cannot read" in each for each in said)
    assert not any(" at 0x" in each for each in said)
