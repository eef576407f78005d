"""Completions made by several engines, one after the other: what a group handed over becomes, and back.

Role: from generations to the members of a `Partial`, and from a member and what was added to it to one generation.
Data in and out: plain values.
Invariants: tokens, log-probabilities and version runs are joined and nothing is re-read or made up: what was there
keeps its version and its log-probability (promise 6); lengths agree; all members of a group are handed over, whatever
their length, since leaving some out would favour short ones (promise 4).
Failure: `unusable` names the first thing that is wrong with a partial; it is then not used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.engines.base import Generation, GenerationRequest
from pipeline.version_runs import join_runs
from schemas.packed import pack_f32, pack_i32
from schemas.records import Partial, PartialMember, PromptGroup, Sample, Version, birth_version

_I32, _F32 = np.dtype("<i4"), np.dtype("<f4")


def unusable(partial: Partial, prompt: PromptGroup) -> str:
    """What is wrong with a partial of this prompt; empty: nothing."""
    members = partial.members
    if partial.prompt != prompt:
        return "it is of another prompt"
    if [member.member for member in members] != list(range(prompt.group_size)):
        return f"{len(members)} members, or others, of a group of {prompt.group_size}"
    found = (_wrong(member, max_tokens=prompt.sampling.max_tokens) for member in members)
    return next((f"member {at}: {wrong}" for at, wrong in enumerate(found) if wrong), "")


def _wrong(member: PartialMember, *, max_tokens: int) -> str:
    num_tokens = len(member.tokens) // 4
    if len(member.tokens) % 4 or len(member.logprobs) != len(member.tokens):
        return f"{len(member.tokens)} bytes of tokens and {len(member.logprobs)} of log-probabilities"
    lengths = [run.num_tokens for run in member.version_runs]
    if sum(lengths) != num_tokens or min(lengths, default=1) < 1:
        return f"version runs of {lengths} tokens for {num_tokens}"
    if member.finish_reason:
        return "" if num_tokens else "it has ended without a token"
    return "" if num_tokens < max_tokens else f"{num_tokens} tokens, at most {max_tokens} were asked for, and no end"


def oldest(members: tuple[PartialMember, ...]) -> Version | None:
    """The version that decides the age of a group; None: it has no token yet."""
    runs = tuple(run for member in members for run in member.version_runs)
    return birth_version(runs) if runs else None


def request_of(member: PartialMember, *, request: GenerationRequest) -> GenerationRequest:
    """The request of a member that goes on; `request` is that of its prompt."""
    made = np.frombuffer(member.tokens, _I32)
    tokens = np.concatenate([np.asarray(request.prompt_tokens, dtype=np.int32), made])
    return replace(request, prompt_tokens=tokens, num_made=len(made))


def joined(member: PartialMember, added: Generation) -> Generation:
    """The whole completion: what a member brought along, and what was added to it."""
    return replace(
        added,
        tokens=np.concatenate([np.frombuffer(member.tokens, _I32), added.tokens]),
        logprobs=np.concatenate([np.frombuffer(member.logprobs, _F32), added.logprobs]),
        version_runs=join_runs(member.version_runs, added.version_runs),
    )


def ended_generation(member: PartialMember, *, request_id: str, logprobs_kind: str) -> Generation:
    """A member that had ended before its group was handed over."""
    return Generation(
        request_id=request_id,
        tokens=np.frombuffer(member.tokens, _I32),
        text=member.text,
        logprobs=np.frombuffer(member.logprobs, _F32),
        logprobs_kind=logprobs_kind,
        version_runs=member.version_runs,
        finish_reason=member.finish_reason,
    )


def ended_member(sample: Sample) -> PartialMember:
    """A member that has ended, with its group not through."""
    return PartialMember(
        member=sample.member,
        tokens=sample.completion_tokens,
        logprobs=sample.logprobs if sample.logprobs is not None else b"",
        version_runs=sample.version_runs,
        finish_reason=sample.finish_reason,
        text=sample.completion_text,
        spent_ms=max(0, sample.finished_unix_ms - sample.started_unix_ms),
    )


def open_member(member: int, whole: Generation, *, spent_ms: int) -> PartialMember:
    """A member that was ended where it was, to go on elsewhere."""
    return PartialMember(
        member=member,
        tokens=pack_i32(whole.tokens),
        logprobs=pack_f32(whole.logprobs),
        version_runs=whole.version_runs,
        spent_ms=max(0, spent_ms),
    )
