"""What must hold inside one record, checked where it enters a stage.

Role: keeps numbers that would poison a loss, and shapes that would break a batch, out of the learner.
Data in and out: a decoded record in; nothing out.
Invariants: a record that passes has the shapes its field docs promise; no value is repaired or replaced.
Failure: `RecordInvalid` whose reason goes to the ledger as it is.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from schemas.errors import CodecError, RecordInvalid
from schemas.reasons import Reason
from schemas.records import (
    Command,
    LedgerSealed,
    LineageStarted,
    Outcome,
    Partial,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    SamplingParams,
    StageEvent,
    sample_id,
)

# A log-softmax in float32 may end a rounding above 0 for a token of probability 1. More than this is no rounding.
MAX_LOGPROB = 1e-6
# Logits are divided by the temperature, and so are gradients: below this, float32 does not hold them. 0 means greedy.
MIN_TEMPERATURE = 1e-4
# Largest weight * value of one reward: squares and sums of more do not fit the numbers a step is computed in.
MAX_REWARD = 1e12
MAX_GROUP_SIZE = 65_536  # members of a group: every one of them has an entry in the group's outcome
# A scheduler's successor takes the next epoch, so one that is nearly used up is a forgery or a fault, not an epoch.
MAX_EPOCH = 2**53
_MAX_STEP = 2**31 - 1  # of lineages and steps
_MAX_SEQ = 2**62  # of records on a ledger partition, of events
_MAX_MONOTONIC_S = 2.0**40  # 35,000 years
_MAX_UNIX_MS = 2**45  # the year 3084

TEMPERATURES = f"0 (greedy) and finite numbers from {MIN_TEMPERATURE:g} up"

_I32 = np.dtype("<i4")
_F32 = np.dtype("<f4")
_GROUPED = (
    Sample,
    Reward,
    ReferenceScore,
    PromptGroup,
    Outcome,
    Partial,
)  # a union is built anew every time
_OF_LEDGER = (Outcome, LineageStarted, LedgerSealed)
_HIGHEST, _LOWEST = np.maximum.reduce, np.minimum.reduce  # what array.max() and min() call, without their wrappers


def check_sample(sample: Sample, group_size: int | None = None) -> None:
    """Check one sample. A sample that reports a failure needs only a valid member number.

    Args:
        sample: the record.
        group_size: members of its group, from the prompt; None: not known here.

    Raises:
        RecordInvalid: with `BAD_GROUP_SIZE`, `EMPTY_COMPLETION`, `MISSING_LOGPROBS`, `LENGTH_MISMATCH`,
            `PROMPT_INVALID` (no prompt tokens), `BAD_SAMPLING`, `NON_FINITE_LOGPROB` (NaN, infinite, or above
            `MAX_LOGPROB`), `OUT_OF_VOCABULARY`, `BAD_LOSS_MASK` or `NON_FINITE_REWARD` (of a step).
    """
    if sample.member < 0 or (group_size is not None and sample.member >= group_size):
        size = "an unknown size" if group_size is None else f"size {group_size}"
        raise _invalid(sample, Reason.BAD_GROUP_SIZE, seen=f"member {sample.member} in a group of {size}")
    if sample.failure is not None:
        return
    tokens, logprobs = sample.completion_tokens, sample.logprobs
    if not tokens:
        raise _invalid(sample, Reason.EMPTY_COMPLETION, seen="no completion tokens and no failure")
    if logprobs is None:
        raise _invalid(sample, Reason.MISSING_LOGPROBS, seen=f"none given for {len(tokens) // 4} tokens")
    mask, prompt = sample.loss_mask, sample.prompt_tokens
    if len(tokens) % 4 or len(prompt) % 4 or len(logprobs) != len(tokens) or (mask and len(mask) * 4 != len(tokens)):
        raise _invalid(sample, Reason.LENGTH_MISMATCH, seen=_lengths(sample, logprobs))
    if not prompt:  # the first completion token has nothing it could be predicted from
        raise _invalid(sample, Reason.PROMPT_INVALID, seen="no prompt tokens")
    temperature = sample.sampling.temperature
    if not is_temperature(temperature):
        raise _invalid(sample, Reason.BAD_SAMPLING, seen=f"temperature {temperature}, allowed are {TEMPERATURES}")
    _check_runs(sample, len(tokens) // 4)
    _check_numbers(sample, logprobs)
    if sample.turns or sample.step_rewards or sample.turn_ms:
        _check_turns(sample)


def is_temperature(value: float) -> bool:
    """Whether log-probabilities at this temperature can be computed: 0 (greedy), or finite and not tiny."""
    return value == 0 or MIN_TEMPERATURE <= value < math.inf


def check_reward(reward: Reward) -> None:
    """Check one reward.

    Raises:
        RecordInvalid: with `BAD_GROUP_SIZE` (negative member), `REWARD_FAILED` (value and failure both set, or
            neither) or `NON_FINITE_REWARD` (value or weight).
    """
    if reward.member < 0:
        raise _invalid(reward, Reason.BAD_GROUP_SIZE, seen=f"member {reward.member}")
    if (reward.value is None) == (reward.failure is None):
        seen = f"value {reward.value} and failure {reward.failure!r}"
        raise _invalid(reward, Reason.REWARD_FAILED, seen=f"{reward.name} has {seen}, exactly one must be set")
    if (reward.value is not None and not math.isfinite(reward.value)) or not math.isfinite(reward.weight):
        raise _invalid(
            reward, Reason.NON_FINITE_REWARD, seen=f"{reward.name} has value {reward.value} and weight {reward.weight}"
        )


def check_prompt(prompt: PromptGroup) -> None:
    """Check one prompt. Text of white space only counts as empty.

    Raises:
        RecordInvalid: with `PROMPT_INVALID`.
    """
    problem = _prompt_problem(prompt) or _sampling_problem(prompt.sampling)
    if problem is not None:
        raise RecordInvalid(
            f"prompt {prompt.run}/{prompt.group} from {prompt.source} is invalid: {problem}",
            reason=Reason.PROMPT_INVALID,
        )


def check_possible(record: Record) -> None:
    """Check what no stage of ours ever writes and every one would stumble over, whatever else the record says.

    Raises:
        CodecError: a group below 0, a prompt of more than `MAX_GROUP_SIZE` members, a partial with the prompt of
            another group, a ledger record of an impossible lineage, step or sequence number, a command of an epoch that
            no scheduler can have, an event at a time that no clock shows.
    """
    if isinstance(record, StageEvent):
        _check_times(record)
    if isinstance(record, Command) and not 0 <= record.epoch <= MAX_EPOCH:
        raise CodecError(f"a command of epoch {record.epoch}, epochs are 0 to {MAX_EPOCH}; it is not obeyed")
    if isinstance(record, _OF_LEDGER):
        _check_place_in_history(record)
    if not isinstance(record, _GROUPED):
        return
    if record.group < 0:
        raise CodecError(f"a {type(record).__name__} of group {record.group}, groups are 0 and up")
    prompt = record.prompt if isinstance(record, Partial) else record
    if isinstance(prompt, PromptGroup) and prompt.group_size > MAX_GROUP_SIZE:
        raise CodecError(f"a prompt for {prompt.group_size} members, at most {MAX_GROUP_SIZE} are allowed")
    if isinstance(prompt, PromptGroup) and (prompt.run, prompt.group) != (record.run, record.group):
        raise CodecError(
            f"a partial of group {record.run}/{record.group} with the prompt of {prompt.run}/{prompt.group}"
        )


def _check_times(event: StageEvent) -> None:
    """Who folds events subtracts, rounds and adds up their times."""
    is_sound = abs(event.monotonic_s) <= _MAX_MONOTONIC_S and 0 <= event.unix_ms <= _MAX_UNIX_MS  # NaN is not
    if not is_sound or not 0 <= event.seq <= _MAX_SEQ:
        raise CodecError(
            f"event {event.seq} of {event.instance:.80} at {event.monotonic_s} s of its clock and Unix time "
            f"{event.unix_ms} ms; numbers begin at 0, and times are those of clocks"
        )


def _check_place_in_history(record: Outcome | LineageStarted | LedgerSealed) -> None:
    """Of a lineage that another one can follow, which is higher than its parent: else history has no end, or a loop."""
    step = record.branch_step if isinstance(record, LineageStarted) else record.step
    if not (0 <= record.lineage <= _MAX_STEP and 0 <= step <= _MAX_STEP and 0 <= record.seq <= _MAX_SEQ):
        raise CodecError(
            f"{type(record).__name__} of step {record.lineage}.{step} and sequence number {record.seq}; lineages and "
            f"steps are 0 to {_MAX_STEP}, sequence numbers 0 to {_MAX_SEQ}"
        )
    if isinstance(record, LineageStarted) and not 0 <= record.parent < record.lineage < _MAX_STEP:
        raise CodecError(
            f"lineage {record.lineage} with parent {record.parent}; a lineage is below {_MAX_STEP} and above its "
            "parent, which is 0 for none"
        )


def _prompt_problem(prompt: PromptGroup) -> str | None:
    given = [name for name in ("text", "messages", "token_ids") if getattr(prompt, name) is not None]
    if len(given) != 1:
        return f"exactly one of text, messages and token_ids must be set, got {given}"
    if prompt.group < 0 or prompt.group_size < 1:
        return f"group {prompt.group} of size {prompt.group_size}, allowed are 0 and up, and 1 and up"
    if prompt.text is not None and not prompt.text.strip():
        return "the text is empty"
    if prompt.messages is not None and not any(message.content.strip() for message in prompt.messages):
        return "no message has content"
    return None if prompt.token_ids is None else _token_problem(prompt.token_ids)


def _token_problem(token_ids: bytes) -> str | None:
    if not token_ids or len(token_ids) % 4:
        return f"token_ids hold {len(token_ids)} bytes, it must be 4 per token and at least one token"
    lowest = int(np.frombuffer(token_ids, _I32).min())
    return f"token id {lowest} is negative" if lowest < 0 else None


def _sampling_problem(sampling: SamplingParams) -> str | None:
    if sampling.max_tokens < 1:
        return f"max_tokens {sampling.max_tokens} leaves no room for one new token"
    if not is_temperature(sampling.temperature):
        return f"temperature {sampling.temperature}, it must be {TEMPERATURES}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p {sampling.top_p}, it must be above 0 and at most 1"
    if sampling.top_k < 0:
        return f"top_k {sampling.top_k}, it must be at least 0"
    return None


def _check_runs(sample: Sample, num_tokens: int) -> None:
    lengths = [run.num_tokens for run in sample.version_runs]
    if sum(lengths) != num_tokens or min(lengths) < 1:
        raise _invalid(
            sample, Reason.LENGTH_MISMATCH, seen=f"version runs of {lengths} tokens for a completion of {num_tokens}"
        )


def _check_turns(sample: Sample) -> None:
    turns, rewards = sample.turns, sample.step_rewards
    ends = [0, *np.frombuffer(turns, _I32).tolist()] if len(turns) % 4 == 0 else []
    is_ascending = all(before < end for before, end in pairwise(ends))
    if len(ends) < 2 or not is_ascending or ends[-1] * 4 != len(sample.completion_tokens):
        seen = f"turns that end at {ends[1:]} in a completion of {len(sample.completion_tokens) // 4} tokens"
        raise _invalid(sample, Reason.LENGTH_MISMATCH, seen=seen)
    if rewards and len(rewards) != len(turns):
        seen = f"{len(rewards)} bytes of step rewards (4 each) for {len(ends) - 1} turns"
        raise _invalid(sample, Reason.LENGTH_MISMATCH, seen=seen)
    if not np.isfinite(np.frombuffer(rewards, _F32)).all():
        raise _invalid(sample, Reason.NON_FINITE_REWARD, seen="a step reward that is no finite number")
    if sample.turn_ms and len(sample.turn_ms) != 2 * len(turns) + 4:
        seen = f"{len(sample.turn_ms)} bytes of times (4 each, 2 per turn and 1 more) for {len(ends) - 1} turns"
        raise _invalid(sample, Reason.LENGTH_MISMATCH, seen=seen)


def _check_numbers(sample: Sample, logprobs: bytes) -> None:
    values = np.frombuffer(logprobs, _F32)
    # min and max pass NaN on, and every comparison with it is false
    if not (_HIGHEST(values) <= MAX_LOGPROB and _LOWEST(values) > -math.inf):
        bad = ~((values <= MAX_LOGPROB) & (values > -math.inf))
        index = int(np.argmax(bad))
        raise _invalid(
            sample, Reason.NON_FINITE_LOGPROB, seen=f"{values[index]} at token {index}, {bad.sum()} such in all"
        )
    if sample.loss_mask.translate(None, b"\x00\x01"):
        raise _invalid(sample, Reason.BAD_LOSS_MASK, seen="values other than 0 and 1")
    # one look at both, since a call costs more than the bytes
    if _LOWEST(np.frombuffer(sample.prompt_tokens + sample.completion_tokens, _I32)) < 0:
        raise _negative_token(sample)


def _negative_token(sample: Sample) -> RecordInvalid:
    prompt = np.frombuffer(sample.prompt_tokens, _I32)
    is_prompt = bool(prompt.size) and bool(prompt.min() < 0)
    name, tokens = ("prompt", prompt) if is_prompt else ("completion", np.frombuffer(sample.completion_tokens, _I32))
    return _invalid(sample, Reason.OUT_OF_VOCABULARY, seen=f"{name} token id {tokens.min()}")


def _lengths(sample: Sample, logprobs: bytes) -> str:
    prompt, completion = len(sample.prompt_tokens), len(sample.completion_tokens)
    return (
        f"{prompt} bytes of prompt tokens (4 each), {completion} of completion tokens (4 each), "
        f"{len(logprobs)} of log-probabilities (4 each), {len(sample.loss_mask)} of mask (1 each)"
    )


def _invalid(record: Sample | Reward, reason: Reason, *, seen: str) -> RecordInvalid:
    kind = type(record).__name__.lower()
    where = sample_id(record.run, group=record.group, member=record.member)
    return RecordInvalid(f"{kind} of {where} from {record.producer} is invalid, {reason}: {seen}", reason=reason)
