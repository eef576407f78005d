"""Records and envelopes for tests of the learner, and the books that must balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from consumers.learner.assembler import Assembler
from consumers.learner.assembler_settings import AssemblerSettings
from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.reports import LABELS
from consumers.learner.staleness import StalenessRule
from pipeline.history import ClosedSet, Lineages
from pipeline.reward_rule import RewardRule, RewardTerm
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import (
    LineageStarted,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    SamplingParams,
    Version,
    VersionRun,
)
from topics.clock import ManualClock
from topics.log import Envelope

P = 4
G = 8
V0 = Version(lineage=1, step=0)


def version(step: int, *, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def prompt(group: int, *, size: int = G) -> PromptGroup:
    return PromptGroup(
        run="r",
        group=group,
        group_size=size,
        text="1 + 1 =",
        sampling=SamplingParams(),
        seed=0,
        source="s",
        source_index=group,
        epoch=0,
        created_unix_ms=0,
    )


def sample(
    group: int,
    member: int,
    *,
    attempt: str = "a",
    born: Version | Sequence[Version] = V0,
    logprobs: Sequence[float] | None = (-0.5, -0.25),
    failure: str | None = None,
    text: str = "2",
) -> Sample:
    births = (born,) if isinstance(born, Version) else tuple(born)
    num_tokens = 2 * len(births)
    values = None if logprobs is None else list(logprobs) * len(births)
    given = failure is None
    return Sample(
        run="r",
        group=group,
        member=member,
        attempt=attempt,
        producer="p",
        failure=failure,
        prompt_tokens=pack_i32([1]) if given else b"",
        completion_text=text if given else "",
        completion_tokens=pack_i32(list(range(num_tokens))) if given else b"",
        logprobs=None if values is None or not given else pack_f32(values),
        loss_mask=pack_u8([1] * num_tokens) if given else b"",
        version_runs=tuple(VersionRun(num_tokens=2, version=birth) for birth in births) if given else (),
        sampling=SamplingParams(),
        seed=member,
        finish_reason="stop" if given else "",
        started_unix_ms=0,
        finished_unix_ms=0,
    )


def reward(
    group: int,
    member: int,
    *,
    attempt: str = "a",
    name: str = "match",
    value: float | None = 1.0,
    failure: str | None = None,
) -> Reward:
    return Reward(
        run="r",
        group=group,
        member=member,
        attempt=attempt,
        name=name,
        plugin_version="1",
        weight=1.0,
        value=value,
        failure=failure,
        sample_offset=0,
        scored_unix_ms=0,
        duration_ms=1.0,
        producer="q",
    )


def score(
    group: int, member: int, *, attempt: str = "a", value: float = -1.0, num_tokens: int = 2, failure: str | None = None
) -> ReferenceScore:
    return ReferenceScore(
        run="r",
        group=group,
        member=member,
        attempt=attempt,
        model_digest="0" * 64,
        logprobs=None if failure is not None else pack_f32([value] * num_tokens),
        failure=failure,
        sample_offset=0,
        scored_unix_ms=0,
        producer="q",
    )


def whole(group: int, *, attempt: str = "a", born: Version = V0, size: int = G) -> list[Record]:
    """Everything a group needs."""
    records: list[Record] = [prompt(group, size=size)]
    for member in range(size):
        records.append(sample(group, member, attempt=attempt, born=born))
        records.append(reward(group, member, attempt=attempt, value=float(member % 2)))
    return records


@dataclass
class Topics:
    """The topics that are joined, of `P` partitions as lists of envelopes."""

    logs: dict[tuple[str, int], list[Envelope]] = field(default_factory=dict)

    def append(self, record: Record, *, partition: int | None = None) -> Envelope:
        assert isinstance(record, PromptGroup | Sample | Reward | ReferenceScore)
        topics = {PromptGroup: "prompts", Sample: "samples", Reward: "rewards", ReferenceScore: "reference-scores"}
        topic = topics[type(record)]
        chosen = record.group % P if partition is None else partition
        log = self.logs.setdefault((topic, chosen), [])
        envelope = Envelope(
            topic=topic,
            partition=chosen,
            offset=len(log),
            key=b"%d" % record.group,
            record=record,
            headers={},
            unix_ms=0,
            num_bytes=100,
        )
        log.append(envelope)
        return envelope

    def extend(self, records: Iterable[Record]) -> list[Envelope]:
        return [self.append(record) for record in records]


def lineages(*started: tuple[int, int, int]) -> Lineages:
    """From (lineage, parent, branch step)."""
    tree = Lineages()
    for number, parent, branch in started or ((1, 0, 0),):
        tree.add(
            LineageStarted(
                run="r", lineage=number, parent=parent, branch_step=branch, seq=0, holder="h", started_unix_ms=0
            )
        )
    return tree


def assembler(
    *,
    clock: ManualClock | None = None,
    eta: int = 2,
    on_stale: str = "drop",
    weights: Mapping[str, float | RewardTerm] | None = None,
    min_group_members: int | None = None,
    tree: Lineages | None = None,
    closed: ClosedSet | None = None,
    step: int = 0,
    buffer_bytes: int = 10**9,
    evict_margin: int = 0,
    vocab_size: int | None = None,
    context_tokens: int | None = None,
    unverified: Literal["train", "drop"] = "train",
    needs_reference: bool = False,
    no_signal_limit: int = 0,
    steps_are_signal: bool = False,
    first_group: int = 0,
) -> Assembler:
    modes = {"drop": "drop", "wait": "wait", "train": "train"}
    return Assembler(
        AssemblerSettings(
            rewards=RewardRule(weights if weights is not None else {"match": 1.0}),
            staleness=StalenessRule(max_age=eta, on_stale=modes[on_stale], evict_margin=evict_margin),  # type: ignore[arg-type]
            min_group_members=min_group_members,
            deadline_s=100.0,
            buffer_bytes=buffer_bytes,
            vocab_size=vocab_size,
            context_tokens=context_tokens,
            unverified=unverified,
            needs_reference=needs_reference,
            no_signal_limit=no_signal_limit,
            steps_are_signal=steps_are_signal,
            first_group=first_group,
        ),
        clock=clock if clock is not None else ManualClock(),
        lineages=tree if tree is not None else lineages(),
        closed=closed,
        step=step,
    )


def feed(target: Assembler, records: Iterable[Record], *, topics: Topics | None = None) -> None:
    target.add_all((topics if topics is not None else Topics()).extend(records))


def let_pass(target: Assembler, clock: ManualClock, seconds: float, *, engine_ready: bool = True) -> None:
    """Time with (or without) an engine ready, then the deadlines."""
    target.tick(engine_ready=engine_ready)
    clock.advance(seconds)
    target.tick(engine_ready=engine_ready)
    target.close_expired()


def record_counts(target: Assembler) -> dict[tuple[str, str], int]:
    """Counts by (metric, topic) since they were last taken, without those of outcomes."""
    counts = target.tally.take_counts()
    return {key: number for key, number in counts.items() if key[0] not in LABELS}


def results(drafts: Iterable[OutcomeDraft]) -> Counter[str]:
    """Members by `result` or `result(reason)`."""
    return Counter(
        f"{member.result}" if member.reason is None else f"{member.result}({member.reason})"
        for draft in drafts
        for member in draft.members
    )


def fates(drafts: Iterable[OutcomeDraft]) -> dict[int, str]:
    """Groups by `result` or `result(reason)`."""
    return {
        draft.group: f"{draft.result}" if draft.reason is None else f"{draft.result}({draft.reason})"
        for draft in drafts
    }


def train_all(target: Assembler, step: int, *, num_groups: int) -> tuple[list[str], int]:
    """Cut and train batches until none is left; the ids in order, and the last step."""
    ids: list[str] = []
    while (batch := target.cut(step, num_groups, allow_smaller=True)) is not None:
        ids += batch.sample_ids()
        target.mark_trained(batch)
        target.take_outcomes()
        step = batch.step
    return ids, step
