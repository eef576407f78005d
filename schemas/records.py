"""Every record that travels on a topic, as frozen types.

Role: the vocabulary of the system. A stage is a function from some of these records to others.
Data in and out: plain Python values; packed arrays are `bytes` of little-endian numbers (see `schemas.packed`),
so decoding a sample costs microseconds, not one Python object per token.
Invariants: records are immutable; `None` means absent, never zero; times are Unix milliseconds and inform people only,
no decision is taken on them (promise 13).
Failure: a type does not check itself; `schemas.validation` does, where a record enters a stage.

A field is only ever added with a default, here and in the next `.avsc` version, so old bytes stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from schemas.evaluation import EvaluatedItem, Evaluation
from schemas.manifests import AdapterOf, ChunkRef, Manifest, TensorEntry
from schemas.references import ReferenceScore
from schemas.versions import Version, VersionRun, birth_version

__all__ = [
    "AdapterOf",
    "ChunkRef",
    "Command",
    "DeadLetter",
    "EvaluatedItem",
    "Evaluation",
    "LedgerSealed",
    "LineageStarted",
    "Manifest",
    "MemberOutcome",
    "Message",
    "Outcome",
    "Partial",
    "PartialMember",
    "PromptGroup",
    "Record",
    "ReferenceScore",
    "Reward",
    "RewardUse",
    "Sample",
    "SamplingParams",
    "StageEvent",
    "TensorEntry",
    "Version",
    "VersionRun",
    "birth_version",
    "sample_id",
]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn."""

    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0  # 1 means off
    top_k: int = 0  # 0 means off
    max_tokens: int = 16  # most completion tokens
    stop: tuple[str, ...] = ()  # the completion ends before the first of these strings


@dataclass(frozen=True, kw_only=True)
class Message:
    """One chat turn."""

    role: str  # "system", "user", "assistant" or what the chat template knows
    content: str


@dataclass(frozen=True, kw_only=True)
class PromptGroup:
    """One prompt, to be sampled `group_size` times. Exactly one of `text`, `messages`, `token_ids` is set."""

    run: str
    group: int  # n = 0, 1, 2, ... without gaps; partition = n mod P
    group_size: int  # members 0 .. group_size - 1
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: bytes | None = None  # packed int32
    sampling: SamplingParams
    seed: int  # member m draws with seed + m
    answer: str | None = None  # reference answer
    metadata: Mapping[str, str] = field(default_factory=dict)  # task metadata; structured values as JSON text
    source: str  # name of the prompt source
    source_index: int  # position inside the source and epoch; with `epoch` the cursor of the prompt producer
    epoch: int
    created_unix_ms: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion of one prompt, or the reason why there is none."""

    run: str
    group: int
    member: int
    attempt: str  # opaque unique id of this generation try of the whole group
    producer: str  # instance that made it
    failure: str | None = None  # set: no completion exists, the fields below are empty
    prompt_text: str = ""  # the prompt as the engine saw it, after the chat template
    prompt_tokens: bytes = b""  # packed int32, as the engine saw them
    completion_text: str = ""
    completion_tokens: bytes = b""  # packed int32
    logprobs: bytes | None = None  # packed float32, one per completion token, of the sampled token; None: not given
    logprobs_kind: str = "processed"  # "raw": of the model's softmax; "processed": after temperature, top-p and top-k
    # packed uint8, one per completion token; 1 trains, 0 does not (the environment's tokens); empty: all train
    loss_mask: bytes = b""
    version_runs: tuple[VersionRun, ...] = ()  # lengths add up to the number of completion tokens
    sampling: SamplingParams
    seed: int
    answer: str | None = None  # copied from the prompt, so that a reward consumer reads one topic only
    metadata: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str = ""  # "stop", "length" or "abort"; with an environment, of the last turn
    started_unix_ms: int
    finished_unix_ms: int
    # packed int32, for each turn the number of completion tokens up to its end; the last is all of them. A turn is
    # what the environment said before it, then what the model said. Empty: one turn, no environment
    turns: bytes = b""
    step_rewards: bytes = b""  # packed float32, of the environment, one per turn; empty: it gives none
    environment: str = ""  # name of the environment plug-in; empty: none
    environment_facts: Mapping[str, str] = field(default_factory=dict)  # what it tells of the episode's end
    # packed int32, milliseconds: for each turn the environment's before it and the model's, then the environment's for
    # its last word; 2 * turns + 1 values. Empty: not told
    turn_ms: bytes = b""


@dataclass(frozen=True, kw_only=True)
class PartialMember:
    """What one member of a group had when an engine gave the group up."""

    member: int
    tokens: bytes = b""  # packed int32: completion tokens made so far, over all engines
    logprobs: bytes = b""  # packed float32, one per token, of the engine that made it
    version_runs: tuple[VersionRun, ...] = ()  # lengths add up to the number of tokens
    finish_reason: str = ""  # empty: it goes on
    text: str = ""  # of one that has ended
    spent_ms: int = 0  # time in engines so far


@dataclass(frozen=True, kw_only=True)
class Partial:
    """A group that an engine gave up, for another one to go on with. A hint: if lost, the group is made afresh."""

    run: str
    group: int
    attempt: str  # the attempt that was given up; who goes on mints another one
    producer: str  # instance that wrote this
    written: bool = False  # True: nothing is to be done, all samples of the attempt are on `samples`
    holder: str = ""  # instance that answers for the prompt still; empty: whoever is given it by the work queue
    taker: str = ""  # instance that is to go on; empty: who is given the prompt
    prompt: PromptGroup | None = None  # None: `written`
    prompt_tokens: bytes = b""  # packed int32, as the engine saw them
    logprobs_kind: str = "processed"  # of all members, as in Sample
    members: tuple[PartialMember, ...] = ()  # by number, all of the group
    born: Version | None = None  # the oldest version of all tokens; None: there are none
    reason: str  # "retired", "packed", "returned", "written"; for people
    given_unix_ms: int


@dataclass(frozen=True, kw_only=True)
class Reward:
    """What one reward plug-in says of one sample: a value, or the reason why there is none; exactly one of the two."""

    run: str
    group: int
    member: int
    attempt: str
    name: str  # of the reward, unique in the run
    plugin_version: str
    weight: float  # 0 for shadow rewards
    value: float | None = None
    failure: str | None = None
    sample_offset: int  # offset of the scored sample; its partition is the reward's own
    scored_unix_ms: int
    duration_ms: float
    producer: str


@dataclass(frozen=True, kw_only=True)
class RewardUse:
    """A reward value as it entered the training signal."""

    name: str
    value: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class MemberOutcome:
    """What became of one sample id."""

    member: int
    attempt: str | None = None  # None: no sample was read
    result: str  # schemas.reasons.Result
    reason: str | None = None  # None when trained
    version: Version | None = None  # birth version, the oldest of its runs
    age: int | None = None  # learner step at the cut minus birth step
    rewards: tuple[RewardUse, ...] = ()
    logprob_gap: bytes | None = None  # packed float16, trainer's less sampler's, nats; NaN: not trained; None: not kept


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The terminal record of a group: one per group and surviving history."""

    run: str
    group: int
    lineage: int
    step: int  # the step whose transaction closed it: a trained group is part of the version (lineage, step)
    seq: int  # dense per ledger partition, over all ledger record types, from 0
    result: str  # schemas.reasons.Result
    reason: str | None = None
    attempt: str | None = None  # the attempt that won, if one did
    members: tuple[MemberOutcome, ...]
    closed_unix_ms: int
    state_digest: str | None = None  # trained: of the version (lineage, step), as its manifest has it; None: not known


@dataclass(frozen=True, kw_only=True)
class LineageStarted:
    """A learner began a lineage. Written to every ledger partition in one transaction.

    Outcomes of the parent (and its ancestors) with a step above `branch_step` are void from here on.
    """

    run: str
    lineage: int
    parent: int  # 0: none
    branch_step: int
    seq: int
    holder: str  # instance of the learner
    started_unix_ms: int
    facts: Mapping[str, str] = field(default_factory=dict)  # what decides its arithmetic: consumers.learner.facts


@dataclass(frozen=True, kw_only=True)
class LedgerSealed:
    """The run ended on purpose. Written to every ledger partition in one transaction; a later lineage reopens it."""

    run: str
    lineage: int
    step: int
    seq: int
    num_groups: int  # groups closed in the surviving history, over all partitions
    reason: str
    sealed_unix_ms: int


@dataclass(frozen=True, kw_only=True)
class StageEvent:
    """What a stage is doing."""

    run: str
    stage: str  # "prompts", "rollout", "reward", "learner", "scheduler", "peer", "supervisor"
    instance: str  # unique per process start
    kind: str  # "phase_began", "phase_ended", "heartbeat", "notice"
    name: str  # the phase, or the name of the notice; "heartbeat" for heartbeats
    seq: int  # dense per instance
    gauges: Mapping[str, float] = field(default_factory=dict)  # names carry their unit
    details: Mapping[str, str] = field(default_factory=dict)
    version: Version | None = None  # served or reached
    monotonic_s: float  # of the instance's own clock; differences only
    unix_ms: int


@dataclass(frozen=True, kw_only=True)
class Command:
    """A desired state: applying it twice changes nothing. Judged by epoch and assumed state, not by time of day."""

    run: str
    target: str  # "rollout", "prompts", "learner", "supervisor", "host" or "all"
    kind: str  # "heartbeat", "publish", "scale", "rate", "drain", "traffic", "credit", "pack"
    epoch: int  # of the scheduler; a lower one than seen is ignored
    seq: int  # dense per epoch
    reason: str
    assumed: Mapping[str, str] = field(default_factory=dict)  # state the decision was taken on
    version: Version | None = None  # publish: the version to serve
    replicas: int | None = None  # scale
    rate: float | None = None  # rate: groups per second, 0 pauses, None lifts the limit; credit: lag in versions
    drain: bool | None = None
    issued_unix_ms: int
    targets: tuple[str, ...] = ()  # publish: instances it is for; empty: every rollout producer. pack: who gives up
    waves: tuple[
        tuple[str, ...], ...
    ] = ()  # publish: order in which they may load; empty: at once. pack: takers of each
    wave: int = 0  # publish: the last of the waves that may load now; who is in none may load with the last one
    rates: Mapping[str, float] = field(default_factory=dict)  # publish, traffic: bytes/s by traffic class


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """Bytes a reader could not decode, with where they came from."""

    run: str
    topic: str  # full Kafka name
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    error: str
    reader: str  # instance
    unix_ms: int


Record: TypeAlias = (
    PromptGroup
    | Sample
    | Partial
    | Reward
    | ReferenceScore
    | Outcome
    | LineageStarted
    | LedgerSealed
    | StageEvent
    | Command
    | Manifest
    | DeadLetter
    | Evaluation
)


def sample_id(run: str, *, group: int, member: int) -> str:
    """The identity of a sample (promise 4): `run/group/member`."""
    return f"{run}/{group}/{member}"
