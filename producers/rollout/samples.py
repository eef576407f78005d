"""Builds sample records.

Role: from an engine's generation, or the reason why there is none, to what goes on `samples`.
Data in: prompt, attempt, generations; data out: `Sample` records.
Invariants: the version runs are the engine's own (promise 6), nothing is re-read afterwards; a failure has no tokens.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.engines.base import Generation, PromptTokens
from pipeline.environments.trajectory import Told
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import PromptGroup, Sample


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One generation try of a whole group."""

    prompt: PromptGroup
    attempt: str  # unique; all members of the group share it (promise 4)
    producer: str  # instance
    started_unix_ms: int


def completed(
    attempt: Attempt,
    *,
    member: int,
    tokens: PromptTokens,
    generation: Generation,
    unix_ms: int,
    before_ms: int = 0,
    told: Told | None = None,
) -> Sample:
    """The sample of a finished generation.

    Args:
        before_ms: time in other engines before this attempt: the time between start and end is that in all of them.
        told: of its turns; None: it had no environment.
    """
    prompt = attempt.prompt
    sample = Sample(
        run=prompt.run,
        group=prompt.group,
        member=member,
        attempt=attempt.attempt,
        producer=attempt.producer,
        prompt_text=tokens.text,
        prompt_tokens=pack_i32(tokens.tokens),
        completion_text=generation.text,
        completion_tokens=pack_i32(generation.tokens),
        logprobs=pack_f32(generation.logprobs),
        logprobs_kind=generation.logprobs_kind,
        loss_mask=pack_u8(np.ones(len(generation.tokens), dtype=np.uint8)),
        version_runs=generation.version_runs,
        sampling=prompt.sampling,
        seed=prompt.seed + member,
        answer=prompt.answer,
        metadata=prompt.metadata,
        finish_reason=generation.finish_reason,
        started_unix_ms=attempt.started_unix_ms - before_ms,
        finished_unix_ms=unix_ms,
    )
    return sample if told is None else told.on(sample)


def failed(attempt: Attempt, *, member: int, reason: str, unix_ms: int) -> Sample:
    """The terminal record of a member without a completion: small, so that it always fits."""
    prompt = attempt.prompt
    return Sample(
        run=prompt.run,
        group=prompt.group,
        member=member,
        attempt=attempt.attempt,
        producer=attempt.producer,
        failure=reason,
        sampling=prompt.sampling,
        seed=prompt.seed + member,
        started_unix_ms=attempt.started_unix_ms,
        finished_unix_ms=unix_ms,
    )


def all_failed(attempt: Attempt, *, reason: str, unix_ms: int) -> tuple[Sample, ...]:
    """One failure for every member, so that the group learns of its end at once."""
    members = range(attempt.prompt.group_size)
    return tuple(failed(attempt, member=member, reason=reason, unix_ms=unix_ms) for member in members)
