"""One record of every type with every field set, shared by the tests of the schemas."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from schemas.evaluation import EvaluatedItem, Evaluation
from schemas.packed import pack_f16, pack_f32, pack_i32, pack_u8
from schemas.records import (
    AdapterOf,
    ChunkRef,
    Command,
    DeadLetter,
    LedgerSealed,
    LineageStarted,
    Manifest,
    MemberOutcome,
    Message,
    Outcome,
    Partial,
    PartialMember,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    RewardUse,
    Sample,
    SamplingParams,
    StageEvent,
    TensorEntry,
    Version,
    VersionRun,
)

NOW_MS = 1_790_000_000_000
SAMPLING = SamplingParams(temperature=0.5, top_p=0.9, top_k=40, max_tokens=32, stop=("\n", "</s>"))

SAMPLE = Sample(
    run="demo",
    group=7,
    member=3,
    attempt="0f3c",
    producer="rollout-0",
    prompt_text="2 + 3 =",
    prompt_tokens=pack_i32([5, 6, 7]),
    completion_text=" 5 \u2713",
    completion_tokens=pack_i32([8, 9, 150_000, 2]),
    logprobs=pack_f32([-0.5, -0.25, 0.0, -12.5]),
    logprobs_kind="raw",
    loss_mask=pack_u8([1, 1, 0, 1]),
    version_runs=(
        VersionRun(num_tokens=3, version=Version(lineage=1, step=5)),
        VersionRun(num_tokens=1, version=Version(lineage=1, step=6), verified=False),
    ),
    sampling=SAMPLING,
    seed=45,
    answer="5",
    metadata={"task": "chain_sum", "terms": "[2, 3]"},
    finish_reason="stop",
    started_unix_ms=NOW_MS,
    finished_unix_ms=NOW_MS + 250,
    turns=pack_i32([2, 4]),
    step_rewards=pack_f32([-0.5, 1.0]),
    environment="guess",
    environment_facts={"ended": "won"},
    turn_ms=pack_i32([3, 100, 40, 90, 17]),
)

REWARD = Reward(
    run="demo",
    group=7,
    member=3,
    attempt="0f3c",
    name="exact",
    plugin_version="1.2",
    weight=0.5,
    value=1.0,
    sample_offset=1234,
    scored_unix_ms=NOW_MS,
    duration_ms=0.75,
    producer="reward-0",
)

PROMPT = PromptGroup(
    run="demo",
    group=7,
    group_size=8,
    messages=(Message(role="system", content="Add."), Message(role="user", content="2 + 3 =")),
    sampling=SAMPLING,
    seed=42,
    answer="5",
    metadata={"task": "chain_sum"},
    source="sums",
    source_index=107,
    epoch=1,
    created_unix_ms=NOW_MS,
)

REFERENCE_SCORE = ReferenceScore(
    run="demo",
    group=7,
    member=3,
    attempt="0f3c",
    model_digest="ab" * 32,
    logprobs=pack_f32([-0.5, -0.25, -1.0, -12.5]),
    sample_offset=41,
    scored_unix_ms=NOW_MS,
    producer="reference-0",
)

PARTIAL = Partial(
    run="demo",
    group=7,
    attempt="0f3c",
    producer="rollout-0",
    holder="rollout-0",
    taker="rollout-1",
    born=Version(lineage=1, step=5),
    prompt=PROMPT,
    prompt_tokens=pack_i32([5, 6, 7]),
    logprobs_kind="raw",
    members=(
        PartialMember(
            member=0,
            tokens=pack_i32([8, 2]),
            logprobs=pack_f32([-0.5, -0.25]),
            version_runs=(VersionRun(num_tokens=2, version=Version(lineage=1, step=5)),),
            finish_reason="stop",
            text=" 5 \u2713",
            spent_ms=250,
        ),
        PartialMember(member=1),
    ),
    reason="packed",
    given_unix_ms=NOW_MS,
)

_OUTCOME = Outcome(
    run="demo",
    group=7,
    lineage=2,
    step=9,
    seq=77,
    result="trained",
    attempt="0f3c",
    members=(
        MemberOutcome(
            member=0,
            attempt="0f3c",
            result="trained",
            version=Version(lineage=1, step=8),
            age=1,
            rewards=(RewardUse(name="exact", value=1.0, weight=0.5), RewardUse(name="length", value=-0.5, weight=0.1)),
            logprob_gap=pack_f16([0.0, -0.25, math.nan]),
        ),
        MemberOutcome(member=1, result="failed", reason="never_arrived"),
    ),
    closed_unix_ms=NOW_MS,
    state_digest="ef" * 32,
)

_EVENT = StageEvent(
    run="demo",
    stage="rollout",
    instance="rollout-0",
    kind="heartbeat",
    name="heartbeat",
    seq=12,
    gauges={"lag_records": 3.0, "rate_tokens_per_s": 812.5},
    details={"engine": "torch"},
    version=Version(lineage=1, step=6),
    monotonic_s=123.5,
    unix_ms=NOW_MS,
)

_COMMAND = Command(
    run="demo",
    target="rollout",
    kind="publish",
    epoch=3,
    seq=4,
    reason="staged",
    assumed={"serving": "1.5"},
    version=Version(lineage=1, step=6),
    replicas=2,
    rate=1.5,
    drain=False,
    issued_unix_ms=NOW_MS,
    targets=("rollout-0", "rollout-1", "rollout-2"),
    waves=(("rollout-2",), ("rollout-0", "rollout-1")),
    wave=1,
    rates={"weights": 25e6},
)

_MANIFEST = Manifest(
    run="demo",
    version=Version(lineage=1, step=6),
    base=Version(lineage=1, step=5),
    base_digest="ab" * 32,
    encoding="delta",
    tensors=(
        TensorEntry(name="embed", dtype="BF16", shape=(32, 64), num_bytes=4096),
        TensorEntry(name="head", dtype="BF16", shape=(32, 64), num_bytes=0, tied_to="embed"),
    ),
    chunks=(ChunkRef(digest="cd" * 32, num_bytes=4096),),
    state_digest="ef" * 32,
    num_bytes=4096,
    seeds=("http://127.0.0.1:8000",),
    created_unix_ms=NOW_MS,
    delta_chunks=(ChunkRef(digest="de" * 32, num_bytes=77),),
    listing=(ChunkRef(digest="fa" * 32, num_bytes=600),),
    delta_bytes=77,
    adapter=AdapterOf(base_digest="0a" * 32, merged_digest="0b" * 32, rank=8, alpha=16.0),
)

_EVALUATION = Evaluation(
    run="demo",
    name="sums",
    version=Version(lineage=1, step=6),
    settings_digest="ab" * 32,
    mean=0.5,
    best_mean=1.0,
    num_prompts=1,
    num_scored=1,
    num_failed=1,
    mean_tokens=2.5,
    items=(
        EvaluatedItem(index=0, member=0, value=0.5, num_tokens=3, text=" 5 \u2713"),
        EvaluatedItem(index=0, member=1, failure="timeout: no value within 1 s", num_tokens=2),
    ),
    facts={"engine": "torch"},
    began_unix_ms=NOW_MS,
    ended_unix_ms=NOW_MS + 1500,
    duration_s=1.5,
    producer="evaluator-0",
)

EXAMPLES: tuple[Record, ...] = (
    PROMPT,
    SAMPLE,
    PARTIAL,
    REWARD,
    REFERENCE_SCORE,
    _OUTCOME,
    LineageStarted(
        run="demo",
        lineage=2,
        parent=1,
        branch_step=8,
        seq=70,
        holder="learner-1",
        started_unix_ms=NOW_MS,
        facts={"torch": "2.9.0+cpu"},
    ),
    LedgerSealed(run="demo", lineage=2, step=9, seq=78, num_groups=8, reason="last step", sealed_unix_ms=NOW_MS),
    _EVENT,
    _COMMAND,
    _MANIFEST,
    _EVALUATION,
    DeadLetter(
        run="demo",
        topic="rlweave.demo.samples",
        partition=1,
        offset=99,
        key=b"7",
        value=b"\x00\xff not a frame",
        headers={"fp": b"00"},
        error="unknown marker",
        reader="learner-1",
        unix_ms=NOW_MS,
    ),
)


def long_sample(num_tokens: int = 1024) -> Sample:
    """A valid sample of `num_tokens` tokens."""
    rng = np.random.default_rng(0)
    return dataclasses.replace(
        SAMPLE,
        completion_tokens=pack_i32(rng.integers(0, 150_000, num_tokens)),
        logprobs=pack_f32(-rng.random(num_tokens)),
        loss_mask=pack_u8(np.ones(num_tokens, np.uint8)),
        version_runs=(VersionRun(num_tokens=num_tokens, version=Version(lineage=1, step=5)),),
        turns=pack_i32([num_tokens // 2, num_tokens]),
    )


def readable(value: object) -> object:
    """A record as JSON values; bytes as `{"hex": ...}`."""
    if dataclasses.is_dataclass(value):
        return {field.name: readable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Mapping):
        return {name: readable(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [readable(item) for item in value]
    return value
