"""One group, and one of its samples token by token, as plain JSON values.

Role: what the sample viewer shows.
Data in: the records that `finding` found. Data out: values for orjson; texts as they are, for the page puts them in as
text.
Invariants: bounded: texts of members that are not looked at are cut to `SHORT_TEXT`, tokens come `MAX_TOKENS` at a
time; a number that JSON cannot hold is null.
Failure: none; arrays that do not fit each other are said in `why`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ops.dashboard.advantage_view import AdvantageView, advantages_of
from ops.dashboard.finding import Found, GroupRecords
from ops.dashboard.pieces import Tokenizer, pieces_of
from schemas.errors import CodecError
from schemas.packed import unpack_f16, unpack_f32, unpack_i32, unpack_mask
from schemas.records import (
    MemberOutcome,
    Outcome,
    PromptGroup,
    ReferenceScore,
    Reward,
    Sample,
)
from topics.catalog import SHADOW_REWARDS

SHORT_TEXT = 600
LONG_TEXT = 200_000
MAX_TOKENS = 4_000
_MOST_MS = 2**53  # what the browser holds; times are what somebody wrote

Json = dict[str, object]
Floats = NDArray[np.float32]
R = TypeVar("R", Outcome, Sample, Reward, ReferenceScore)


def group_json(found: GroupRecords, *, surviving: frozenset[int], advantage: str | None) -> Json:
    """A group: its prompt, its outcomes, its attempts with their members side by side.

    Args:
        surviving: ledger offsets of its outcomes that are not void.
        advantage: name of the run's advantage; None: not known.
    """
    outcomes = _of(found, Outcome)
    standing = next((each for at, each in reversed(outcomes) if at.offset in surviving), None)
    samples = _of(found, Sample)
    advantages = _advantages(standing, samples, advantage=advantage)
    attempts = list(dict.fromkeys(sample.attempt for _, sample in samples))
    if standing is not None and standing.attempt in attempts:
        attempts.sort(key=lambda attempt: attempt != standing.attempt)
    return {
        "group": found.group,
        "partition": found.partition,
        "prompt": None if found.prompt is None else _prompt(found.prompt),
        "outcomes": [_outcome(at, each, is_void=at.offset not in surviving) for at, each in outcomes],
        "advantage": {"name": advantages.name, "why": advantages.why},
        "attempts": [_attempt(found, attempt, outcome=standing, advantages=advantages) for attempt in attempts],
        "missing": _missing(standing, attempts),
        "notes": found.notes,
    }


def tokens_json(
    found: GroupRecords,
    *,
    place: tuple[int, str],
    skip: int,
    tokenizer: Tokenizer | None,
    standing: tuple[frozenset[int], str | None],
) -> Json | None:
    """One sample token by token; None: it was not found.

    Args:
        place: member and attempt; an empty attempt: the first one read.
        skip: tokens before the first one wanted.
        tokenizer: None: ids only.
        standing: as `surviving` and `advantage` of `group_json`.
    """
    member, attempt = place
    samples = [(at, each) for at, each in _of(found, Sample) if each.member == member]
    chosen = next(((at, each) for at, each in samples if attempt in ("", each.attempt)), None)
    if chosen is None:
        return None
    at, sample = chosen
    outcome = next((each for here, each in reversed(_of(found, Outcome)) if here.offset in standing[0]), None)
    advantages = _advantages(outcome, _of(found, Sample), advantage=standing[1])
    value = advantages.values.get(member) if outcome is not None and outcome.attempt == sample.attempt else None
    return {
        "member": member,
        "attempt": sample.attempt,
        "place": _place(at),
        "text": sample.completion_text[:LONG_TEXT],
        "prompt_text": sample.prompt_text[:LONG_TEXT],
        "answer": sample.answer,
        "metadata": dict(sample.metadata),
        "environment": sample.environment,
        "environment_facts": dict(sample.environment_facts),
        "sampling": asdict(sample.sampling),
        "seed": str(sample.seed),  # 64 bits, which a number in the browser does not hold
        "logprobs_kind": sample.logprobs_kind,
        "tokens": _tokens(found, sample, skip=skip, tokenizer=tokenizer, advantage=value)
        | _trainer_gap(outcome, sample, skip=skip),
    }


def _tokens(
    found: GroupRecords,
    sample: Sample,
    *,
    skip: int,
    tokenizer: Tokenizer | None,
    advantage: float | list[float] | None,
) -> Json:
    """The columns of a token table; a column that is not there is null, and `why` says why."""
    try:
        prompt, ids = unpack_i32(sample.prompt_tokens).tolist(), unpack_i32(sample.completion_tokens).tolist()
        logprobs = None if sample.logprobs is None else unpack_f32(sample.logprobs)
        mask = unpack_mask(sample.loss_mask, num_tokens=len(ids)).tolist()
        turns = unpack_i32(sample.turns).tolist() if sample.turns else []
        earned = unpack_f32(sample.step_rewards).tolist() if sample.step_rewards else []
    except CodecError as error:
        return {"num_tokens": 0, "skip": 0, "ids": [], "why": error.message}
    part = slice(skip, skip + MAX_TOKENS)
    reference, why = _reference(found, sample)
    gap = None if logprobs is None or reference is None or len(reference) != len(logprobs) else logprobs - reference
    pieces = None if tokenizer is None else pieces_of(tokenizer, ids[part])
    return {
        "num_tokens": len(ids),
        "skip": skip,
        "ids": ids[part],
        "pieces": pieces,
        "prompt_ids": prompt[:MAX_TOKENS],
        "num_prompt_tokens": len(prompt),
        "prompt_pieces": None if tokenizer is None else pieces_of(tokenizer, prompt[:MAX_TOKENS]),
        "logprobs": None if logprobs is None else _floats(logprobs[part]),
        "gap": None if gap is None else _floats(gap[part]),
        "gap_why": why,
        "advantage": advantage[part] if isinstance(advantage, list) else advantage,
        "mask": mask[part],
        "versions": [
            {"version": str(run.version), "num_tokens": run.num_tokens, "verified": run.verified}
            for run in sample.version_runs[:1000]
        ],
        "turns": turns,
        "step_rewards": earned,
    }


def _trainer_gap(outcome: Outcome | None, sample: Sample, *, skip: int) -> Json:
    """How much surer the sampler was of each token than the trainer: `trainer_gap`, null where it is not kept."""
    nothing: Json = {
        "trainer_gap": None,
        "trainer_gap_why": "the learner keeps it only for the samples of a step that lie furthest apart",
    }
    if outcome is None or outcome.attempt != sample.attempt:
        return nothing
    kept = next((each.logprob_gap for each in outcome.members if each.member == sample.member), None)
    if kept is None or 2 * len(kept) != len(sample.completion_tokens):
        return nothing
    return {
        "trainer_gap": _floats(-unpack_f16(kept).astype(np.float32)[skip : skip + MAX_TOKENS]),
        "trainer_gap_why": "",
    }


def _reference(found: GroupRecords, sample: Sample) -> tuple[Floats | None, str]:
    scores = [
        score
        for _, score in _of(found, ReferenceScore)
        if (score.member, score.attempt) == (sample.member, sample.attempt)
    ]
    if not scores:
        return None, "no reference model scored this sample"
    if scores[-1].logprobs is None:
        return None, f"the reference model failed: {scores[-1].failure}"
    try:
        return unpack_f32(scores[-1].logprobs), ""
    except CodecError as error:
        return None, error.message


def _attempt(found: GroupRecords, attempt: str, *, outcome: Outcome | None, advantages: AdvantageView) -> Json:
    is_won = outcome is not None and outcome.attempt == attempt
    verdicts = {each.member: each for each in outcome.members} if outcome is not None and is_won else {}
    firsts: dict[int, tuple[Found, Sample]] = {}
    for at, sample in _of(found, Sample):
        if sample.attempt == attempt:
            firsts.setdefault(sample.member, (at, sample))
    return {
        "attempt": attempt,
        "producer": next((sample.producer for _, sample in firsts.values()), ""),
        "won": is_won,
        "members": [
            _member(
                at,
                sample,
                rewards=_rewards(found, sample),
                verdict=verdicts.get(member),
                advantage=advantages.values.get(member) if is_won else None,
            )
            for member, (at, sample) in sorted(firsts.items())
        ],
    }


def _member(
    at: Found,
    sample: Sample,
    *,
    rewards: list[Json],
    verdict: MemberOutcome | None,
    advantage: float | list[float] | None,
) -> Json:
    mean = float(np.mean(advantage)) if isinstance(advantage, list) and advantage else advantage
    return {
        "member": sample.member,
        "place": _place(at),
        "failure": sample.failure,
        "text": sample.completion_text[:SHORT_TEXT],
        "is_cut": len(sample.completion_text) > SHORT_TEXT,
        "num_tokens": len(sample.completion_tokens) // 4,
        "finish_reason": sample.finish_reason,
        "versions": list(dict.fromkeys(str(run.version) for run in sample.version_runs))[:100],
        "num_turns": len(sample.turns) // 4,
        "took_ms": min(_MOST_MS, max(0, sample.finished_unix_ms - sample.started_unix_ms)),
        "rewards": rewards,
        "advantage": None if isinstance(mean, list) else mean,
        "outcome": None if verdict is None else _verdict(verdict),
    }


def _rewards(found: GroupRecords, sample: Sample) -> list[Json]:
    return [
        {
            "name": reward.name,
            "value": reward.value,
            "failure": reward.failure,
            "weight": reward.weight,
            "is_shadow": at.topic == SHADOW_REWARDS.name,
            "plugin_version": reward.plugin_version,
            "took_ms": reward.duration_ms,
            "place": _place(at),
        }
        for at, reward in _of(found, Reward)
        if (reward.member, reward.attempt) == (sample.member, sample.attempt)
    ]


def _verdict(member: MemberOutcome) -> Json:
    return {
        "result": str(member.result),
        "reason": member.reason,
        "version": None if member.version is None else str(member.version),
        "age": member.age,
        "total": sum(use.weight * use.value for use in member.rewards) if member.rewards else None,
        "rewards": [asdict(use) for use in member.rewards],
    }


def _missing(outcome: Outcome | None, attempts: Sequence[str]) -> list[Json]:
    """Members that have an outcome, and no sample that was found."""
    if outcome is None:
        return []
    return [
        {"member": each.member, **_verdict(each)}
        for each in outcome.members
        if each.attempt is None or each.attempt not in attempts
    ]


def _outcome(at: Found, outcome: Outcome, *, is_void: bool) -> Json:
    return {
        "result": str(outcome.result),
        "reason": outcome.reason,
        "lineage": outcome.lineage,
        "step": outcome.step,
        "seq": outcome.seq,
        "attempt": outcome.attempt,
        "closed_unix_ms": outcome.closed_unix_ms,
        "is_void": is_void,
        "place": _place(at),
    }


def _prompt(at: Found) -> Json:
    prompt = at.record
    if not isinstance(prompt, PromptGroup):
        return {}
    messages = None if prompt.messages is None else [[each.role, each.content[:LONG_TEXT]] for each in prompt.messages]
    return {
        "place": _place(at),
        "text": None if prompt.text is None else prompt.text[:LONG_TEXT],
        "messages": messages,
        "num_token_ids": None if prompt.token_ids is None else len(prompt.token_ids) // 4,
        "answer": prompt.answer,
        "metadata": dict(prompt.metadata),
        "source": prompt.source,
        "source_index": prompt.source_index,
        "epoch": prompt.epoch,
        "group_size": prompt.group_size,
        "created_unix_ms": prompt.created_unix_ms,
    }


def _advantages(
    outcome: Outcome | None, samples: Sequence[tuple[Found, Sample]], *, advantage: str | None
) -> AdvantageView:
    if outcome is None:
        return AdvantageView(name=advantage or "", why="the group has no outcome yet")
    own: Mapping[int, Sample] = {each.member: each for _, each in reversed(samples) if each.attempt == outcome.attempt}
    return advantages_of(outcome, own, name=advantage)


def _place(found: Found) -> str:
    return f"{found.topic}/{found.partition}/{found.offset}"


def _floats(values: Floats) -> list[float]:
    return [round(float(value), 5) for value in values]


def _of(found: GroupRecords, kind: type[R]) -> list[tuple[Found, R]]:
    return [(each, each.record) for each in found.records if isinstance(each.record, kind)]
