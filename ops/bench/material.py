"""Samples as a run makes them, to be measured with.

Data out: records of 1,024 completion tokens by default, with log-probabilities, mask, text and version.
Invariants: the same seed gives the same records; log-probabilities are of full precision, so they hardly compress.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import PromptGroup, Reward, Sample, SamplingParams, Version, VersionRun

REWARD = "sum"
_VOCABULARY = 150_000
_PROMPT_TOKENS = 64
_UNIX_MS = 1_790_000_000_000
_WORDS = ("so", "the", "sum", "of", "both", "terms", "is", "first", "we", "add", "carry", "then", "check", "answer")


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """The arrays of one sample as an engine holds them."""

    prompt_tokens: NDArray[np.int32]
    completion_tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    loss_mask: NDArray[np.uint8]


def make_arrays(rng: np.random.Generator, *, num_tokens: int) -> Arrays:
    """Token ids that favour low numbers, as vocabularies do, and log-probabilities of a sampler."""
    draws = rng.zipf(1.2, size=num_tokens + _PROMPT_TOKENS)
    tokens = np.minimum(draws, _VOCABULARY - 1).astype(np.int32)
    return Arrays(
        prompt_tokens=tokens[:_PROMPT_TOKENS],
        completion_tokens=tokens[_PROMPT_TOKENS:],
        logprobs=-rng.exponential(0.7, size=num_tokens).astype(np.float32),
        loss_mask=np.ones(num_tokens, dtype=np.uint8),
    )


def make_text(rng: np.random.Generator, *, num_tokens: int) -> str:
    """About one word per token."""
    return " ".join(_WORDS[index] for index in rng.integers(len(_WORDS), size=num_tokens))


def make_sample(arrays: Arrays, *, run: str, group: int, member: int, text: str) -> Sample:
    """One sample, its arrays packed."""
    num_tokens = len(arrays.completion_tokens)
    return Sample(
        run=run,
        group=group,
        member=member,
        attempt=f"{group:08x}",
        producer="rollout-0",
        prompt_text="What is the sum of the two terms?",
        prompt_tokens=pack_i32(arrays.prompt_tokens),
        completion_text=text,
        completion_tokens=pack_i32(arrays.completion_tokens),
        logprobs=pack_f32(arrays.logprobs),
        loss_mask=pack_u8(arrays.loss_mask),
        version_runs=(VersionRun(num_tokens=num_tokens, version=Version(lineage=1, step=0)),),
        sampling=SamplingParams(max_tokens=num_tokens),
        seed=member,
        answer="5",
        metadata={"task": "chain_sum"},
        finish_reason="length",
        started_unix_ms=_UNIX_MS,
        finished_unix_ms=_UNIX_MS + 900,
    )


def make_prompt(run: str, group: int, *, group_size: int, num_tokens: int) -> PromptGroup:
    """One prompt."""
    return PromptGroup(
        run=run,
        group=group,
        group_size=group_size,
        text="What is the sum of the two terms?",
        sampling=SamplingParams(max_tokens=num_tokens),
        seed=group,
        answer="5",
        source="bench",
        source_index=group,
        epoch=0,
        created_unix_ms=_UNIX_MS,
    )


def make_reward(sample: Sample) -> Reward:
    """The reward of a sample."""
    return Reward(
        run=sample.run,
        group=sample.group,
        member=sample.member,
        attempt=sample.attempt,
        name=REWARD,
        plugin_version="1",
        weight=1.0,
        value=float(sample.member % 2),
        sample_offset=0,
        scored_unix_ms=_UNIX_MS,
        duration_ms=0.2,
        producer="reward-0",
    )


def make_groups(run: str, *, num_groups: int, group_size: int, num_tokens: int) -> Iterator[list[Sample]]:
    """The samples of each group in turn. Arrays repeat every 64 groups: making them is not what is measured."""
    rng = np.random.default_rng(0)
    pool = [
        (make_arrays(rng, num_tokens=num_tokens), make_text(rng, num_tokens=num_tokens)) for _ in range(64 * group_size)
    ]
    for group in range(num_groups):
        yield [
            make_sample(pool[at][0], run=run, group=group, member=member, text=pool[at][1])
            for member, at in enumerate((group % 64) * group_size + each for each in range(group_size))
        ]
