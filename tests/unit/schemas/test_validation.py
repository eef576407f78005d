"""Records whose content would poison a loss or break a batch are refused with the reason the ledger shows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from schemas.errors import CodecError, RecordInvalid
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.reasons import Reason
from schemas.records import (
    Command,
    LedgerSealed,
    LineageStarted,
    Message,
    Outcome,
    Record,
    Sample,
    SamplingParams,
    StageEvent,
    Version,
    VersionRun,
)
from schemas.validation import MAX_EPOCH, MAX_GROUP_SIZE, check_possible, check_prompt, check_reward, check_sample
from tests.unit.schemas.examples import PARTIAL, PROMPT, REWARD, SAMPLE, long_sample

V = Version(lineage=1, step=5)
OUTCOME = Outcome(
    run="demo", group=7, lineage=2, step=3, seq=0, result="dropped", reason="stale", members=(), closed_unix_ms=0
)
STARTED = LineageStarted(run="demo", lineage=4, parent=3, branch_step=8, seq=0, holder="learner-1", started_unix_ms=0)
SEALED = LedgerSealed(run="demo", lineage=4, step=9, seq=0, num_groups=8, reason="last step", sealed_unix_ms=0)


def runs(*lengths: int) -> tuple[VersionRun, ...]:
    return tuple(VersionRun(num_tokens=length, version=V) for length in lengths)


def with_logprob(value: float) -> Sample:
    return dataclasses.replace(SAMPLE, logprobs=pack_f32([-0.5, value, -0.25, -1.0]))


def test_valid_records_pass() -> None:
    check_sample(SAMPLE, group_size=8)
    check_sample(SAMPLE)
    check_sample(long_sample(), 8)
    check_reward(REWARD)
    check_prompt(PROMPT)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, 0.5, 1.1e-6])
def test_a_bad_logprob_at_one_token_is_refused(value: float) -> None:
    with pytest.raises(RecordInvalid, match="at token 1, 1 such in all") as caught:
        check_sample(with_logprob(value))
    assert caught.value.reason == Reason.NON_FINITE_LOGPROB


@pytest.mark.parametrize("value", [0.0, float(np.finfo(np.float32).eps), 9e-7, -1e30])
def test_rounding_above_zero_and_very_unlikely_tokens_pass(value: float) -> None:
    check_sample(with_logprob(value))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": None}, Reason.MISSING_LOGPROBS),
        ({"logprobs": b""}, Reason.LENGTH_MISMATCH),
        ({"logprobs": pack_f32([-1.0] * 5)}, Reason.LENGTH_MISMATCH),
        ({"loss_mask": pack_u8([1] * 3)}, Reason.LENGTH_MISMATCH),
        ({"loss_mask": pack_u8([1, 2, 0, 1])}, Reason.BAD_LOSS_MASK),
        ({"turns": pack_i32([2, 3])}, Reason.LENGTH_MISMATCH),
        ({"turns": pack_i32([2, 2, 4])}, Reason.LENGTH_MISMATCH),
        ({"turns": b"abc"}, Reason.LENGTH_MISMATCH),
        ({"turns": b"", "step_rewards": pack_f32([1.0])}, Reason.LENGTH_MISMATCH),
        ({"step_rewards": pack_f32([1.0])}, Reason.LENGTH_MISMATCH),
        ({"turns": b"", "step_rewards": b"", "turn_ms": pack_i32([1])}, Reason.LENGTH_MISMATCH),
        ({"turn_ms": pack_i32([1, 2, 3, 4])}, Reason.LENGTH_MISMATCH),
        ({"step_rewards": pack_f32([1.0, float("nan")])}, Reason.NON_FINITE_REWARD),
        ({"completion_tokens": SAMPLE.completion_tokens[:-1]}, Reason.LENGTH_MISMATCH),
        ({"completion_tokens": pack_i32([1, 2, 3])}, Reason.LENGTH_MISMATCH),
        ({"completion_tokens": pack_i32([1, 2, -3, 4])}, Reason.OUT_OF_VOCABULARY),
        ({"prompt_tokens": b"123"}, Reason.LENGTH_MISMATCH),
        ({"prompt_tokens": pack_i32([-1])}, Reason.OUT_OF_VOCABULARY),
        ({"prompt_tokens": b""}, Reason.PROMPT_INVALID),
        ({"sampling": SamplingParams(temperature=math.nan)}, Reason.BAD_SAMPLING),
        ({"sampling": SamplingParams(temperature=math.inf)}, Reason.BAD_SAMPLING),
        ({"sampling": SamplingParams(temperature=-1.0)}, Reason.BAD_SAMPLING),
        ({"sampling": SamplingParams(temperature=1e-30)}, Reason.BAD_SAMPLING),
        ({"version_runs": ()}, Reason.LENGTH_MISMATCH),
        ({"version_runs": runs(3)}, Reason.LENGTH_MISMATCH),
        ({"version_runs": runs(3, 2)}, Reason.LENGTH_MISMATCH),
        ({"version_runs": runs(4, 0)}, Reason.LENGTH_MISMATCH),
        ({"version_runs": runs(5, -1)}, Reason.LENGTH_MISMATCH),
        ({"completion_tokens": b"", "logprobs": b"", "loss_mask": b"", "version_runs": ()}, Reason.EMPTY_COMPLETION),
        ({"member": -1}, Reason.BAD_GROUP_SIZE),
        ({"member": 8}, Reason.BAD_GROUP_SIZE),
    ],
)
def test_a_bad_sample_is_refused(change: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(RecordInvalid) as caught:
        check_sample(dataclasses.replace(SAMPLE, **change), group_size=8)
    assert caught.value.reason == reason
    assert "from rollout-0" in str(caught.value)


def test_a_failed_sample_needs_only_its_member_number() -> None:
    failed = Sample(
        run="demo",
        group=7,
        member=3,
        attempt="a",
        producer="p",
        failure="engine_failed",
        sampling=SamplingParams(),
        seed=1,
        started_unix_ms=0,
        finished_unix_ms=0,
    )
    check_sample(failed, group_size=4)
    with pytest.raises(RecordInvalid):
        check_sample(failed, group_size=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"value": None}, Reason.REWARD_FAILED),
        ({"failure": "timeout"}, Reason.REWARD_FAILED),
        ({"value": math.nan}, Reason.NON_FINITE_REWARD),
        ({"value": math.inf}, Reason.NON_FINITE_REWARD),
        ({"weight": math.nan}, Reason.NON_FINITE_REWARD),
        ({"member": -1}, Reason.BAD_GROUP_SIZE),
    ],
)
def test_a_bad_reward_is_refused(change: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(RecordInvalid) as caught:
        check_reward(dataclasses.replace(REWARD, **change))
    assert caught.value.reason == reason


def test_a_reward_that_reports_a_failure_passes() -> None:
    check_reward(dataclasses.replace(REWARD, value=None, failure="timeout"))


@pytest.mark.parametrize("change", [{"text": "hello"}, {"token_ids": pack_i32([1])}])
def test_each_form_of_prompt_passes(change: dict[str, Any]) -> None:
    check_prompt(dataclasses.replace(PROMPT, **{"messages": None, **change}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": None}, "exactly one"),
        ({"text": "both"}, "exactly one"),
        ({"messages": None, "text": " \n"}, "text is empty"),
        ({"messages": ()}, "no message has content"),
        ({"messages": (Message(role="user", content=""),)}, "no message has content"),
        ({"messages": None, "token_ids": b""}, "at least one token"),
        ({"messages": None, "token_ids": b"123"}, "4 per token"),
        ({"messages": None, "token_ids": pack_i32([1, -4])}, "-4 is negative"),
        ({"group_size": 0}, "size 0"),
        ({"group": -1}, "group -1"),
        ({"sampling": SamplingParams(max_tokens=0)}, "max_tokens 0"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature -1"),
        ({"sampling": SamplingParams(temperature=math.nan)}, "temperature nan"),
        ({"sampling": SamplingParams(temperature=1e-30)}, "temperature 1e-30"),
        ({"sampling": SamplingParams(top_p=0.0)}, "top_p 0"),
        ({"sampling": SamplingParams(top_k=-1)}, "top_k -1"),
    ],
)
def test_a_bad_prompt_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RecordInvalid, match=said) as caught:
        check_prompt(dataclasses.replace(PROMPT, **change))
    assert caught.value.reason == Reason.PROMPT_INVALID


@pytest.mark.parametrize("record", [SAMPLE, REWARD, PROMPT, OUTCOME])
def test_a_group_below_0_is_no_record(record: Record) -> None:
    check_possible(record)
    with pytest.raises(CodecError, match="group -4, groups are 0 and up"):
        check_possible(dataclasses.replace(record, group=-4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (dataclasses.replace(PROMPT, group_size=MAX_GROUP_SIZE + 1), "65537 members"),
        (
            dataclasses.replace(PARTIAL, prompt=dataclasses.replace(PROMPT, group_size=MAX_GROUP_SIZE + 1)),
            "65537 members",
        ),
        (dataclasses.replace(PARTIAL, group=PROMPT.group + 1), "with the prompt of"),
        (dataclasses.replace(PARTIAL, run="other"), "partial of group other/"),
        (dataclasses.replace(OUTCOME, step=2**31), "step 2.2147483648"),
        (dataclasses.replace(OUTCOME, lineage=-1), "step -1"),
        (dataclasses.replace(OUTCOME, seq=2**63 - 1), "sequence number 9223372036854775807"),
        (dataclasses.replace(STARTED, branch_step=-1), "step 4.-1"),
        (dataclasses.replace(STARTED, parent=4), "lineage 4 with parent 4"),
        (dataclasses.replace(STARTED, parent=-1), "lineage 4 with parent -1"),
        (dataclasses.replace(STARTED, lineage=2**31 - 1), "lineage 2147483647 with parent 3"),
        (dataclasses.replace(SEALED, step=-1), "step 4.-1"),
    ],
)
def test_what_no_stage_could_digest_is_no_record(record: Record, said: str) -> None:
    with pytest.raises(CodecError, match=said):
        check_possible(record)


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH + 1, 2**63 - 1])
def test_a_command_of_an_epoch_without_successor_is_no_record(epoch: int) -> None:
    command = Command(run="r", target="all", kind="heartbeat", epoch=MAX_EPOCH, seq=0, reason="", issued_unix_ms=0)
    check_possible(command)
    with pytest.raises(CodecError, match=f"epoch {epoch}, epochs are 0 to"):
        check_possible(dataclasses.replace(command, epoch=epoch))


@pytest.mark.parametrize(
    "change",
    [
        {"monotonic_s": math.nan},
        {"monotonic_s": math.inf},
        {"monotonic_s": -1e300},
        {"unix_ms": 2**63 - 1},
        {"unix_ms": -1},
        {"seq": -1},
    ],
)
def test_an_event_at_a_time_of_no_clock_is_no_record(change: dict[str, Any]) -> None:
    event = StageEvent(
        run="r", stage="learner", instance="learner-h-1-aa", kind="notice", name="x", seq=0, monotonic_s=0.0, unix_ms=0
    )
    check_possible(event)
    with pytest.raises(CodecError, match="times are those of clocks"):
        check_possible(dataclasses.replace(event, **change))
