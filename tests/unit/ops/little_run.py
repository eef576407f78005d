"""A hand-made run of six groups on two partitions, with a restart in the middle, as lists of records.

Groups 0 and 1 were trained by step 1.1; step 1.2 trained 2 and dropped 3. The learner died and came back from step 1,
so 1.2 is void: lineage 2 trained 2 and 4 in step 2.2, dropped 3 (a failed member) and 5 (it never arrived), and sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import (
    LedgerSealed,
    LineageStarted,
    Manifest,
    MemberOutcome,
    Outcome,
    PromptGroup,
    Record,
    Reward,
    RewardUse,
    Sample,
    SamplingParams,
    Version,
    VersionRun,
)
from topics.catalog import BY_NAME, LEDGER, PROMPTS, REWARDS, SAMPLES, WEIGHTS, Topic

R = TypeVar("R", PromptGroup, Sample, Reward, Outcome, LedgerSealed)

RUN = "little"
PARTITIONS = 2
GROUP_SIZE = 2
NOW_MS = 1_790_000_000_000


def version(text: str) -> Version:
    lineage, _, step = text.partition(".")
    return Version(lineage=int(lineage), step=int(step))


@dataclass
class LittleRun:
    """Records per topic and partition, in order."""

    records: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    tombstones: list[str] = field(default_factory=list)  # versions

    def put(self, topic: Topic, record: Record, *, partition: int | None = None) -> None:
        if partition is None:
            partition = record.group % PARTITIONS if isinstance(record, PromptGroup | Sample | Reward | Outcome) else 0
        self.records.setdefault((topic.name, partition), []).append(record)

    def take(self, topic: Topic, wanted: Callable[[Record], bool]) -> Record:
        """Remove the first record that is wanted."""
        for (name, _), records in self.records.items():
            if name == topic.name:
                for record in records:
                    if wanted(record):
                        records.remove(record)
                        return record
        raise AssertionError(f"no such record on {topic.name}")

    def change(self, kind: type[R], wanted: Callable[[R], bool], change: Callable[[R], R]) -> None:
        """Replace the first record of type `kind` that is wanted."""
        for records in self.records.values():
            for index, record in enumerate(records):
                if isinstance(record, kind) and wanted(record):
                    records[index] = change(record)
                    return
        raise AssertionError(f"no such {kind.__name__}")

    def __iter__(self) -> Iterator[tuple[Topic, int, int, Record]]:
        """(topic, partition, offset, record)."""
        for (name, partition), records in self.records.items():
            for offset, record in enumerate(records):
                yield BY_NAME[name], partition, offset, record


def prompt(group: int) -> PromptGroup:
    return PromptGroup(
        run=RUN,
        group=group,
        group_size=GROUP_SIZE,
        text=f"{group} + 1 =",
        sampling=SamplingParams(max_tokens=4),
        seed=group,
        answer=str(group + 1),
        source="hand",
        source_index=group,
        epoch=0,
        created_unix_ms=NOW_MS + group,
    )


def attempt_of(group: int) -> str:
    return f"try-{group}"


def sample(group: int, member: int, *, born: str = "1.0", failure: str | None = None) -> Sample:
    return Sample(
        run=RUN,
        group=group,
        member=member,
        attempt=attempt_of(group),
        producer="rollout-0",
        failure=failure,
        prompt_text="" if failure else f"{group} + 1 =",
        completion_text="" if failure else f"{group + 1}",
        prompt_tokens=pack_i32([1, 2]),
        completion_tokens=pack_i32([] if failure else [3, 4]),
        logprobs=None if failure else pack_f32([-0.5, -0.25]),
        loss_mask=pack_u8([] if failure else [1, 1]),
        version_runs=() if failure else (VersionRun(num_tokens=2, version=version(born)),),
        sampling=SamplingParams(max_tokens=4),
        seed=group + member,
        finish_reason="" if failure else "stop",
        started_unix_ms=NOW_MS,
        finished_unix_ms=NOW_MS + 10,
    )


def reward(group: int, member: int, *, value: float | None = 1.0, name: str = "exact") -> Reward:
    return Reward(
        run=RUN,
        group=group,
        member=member,
        attempt=attempt_of(group),
        name=name,
        plugin_version="1",
        weight=1.0,
        value=value,
        failure=None if value is not None else "TimeoutError",
        sample_offset=0,
        scored_unix_ms=NOW_MS + 20,
        duration_ms=1.0,
        producer="reward-0",
    )


def trained_member(group: int, member: int, *, born: str, age: int) -> MemberOutcome:
    uses = (RewardUse(name="exact", value=1.0, weight=1.0),)
    return MemberOutcome(
        member=member, attempt=attempt_of(group), result="trained", version=version(born), age=age, rewards=uses
    )


def trained(group: int, *, at: str, seq: int, born: str = "1.0") -> Outcome:
    age = version(at).step - 1 - version(born).step
    return _outcome(
        group,
        at=at,
        seq=seq,
        result="trained",
        members=tuple(trained_member(group, member, born=born, age=age) for member in range(GROUP_SIZE)),
    )


def _outcome(group: int, *, at: str, seq: int, result: str, members: tuple[MemberOutcome, ...]) -> Outcome:
    return Outcome(
        run=RUN,
        group=group,
        lineage=version(at).lineage,
        step=version(at).step,
        seq=seq,
        result=result,
        reason=None if result == "trained" else "incomplete",
        attempt=attempt_of(group),
        members=members,
        closed_unix_ms=NOW_MS + 30,
    )


def _failed(group: int, *, at: str, seq: int) -> Outcome:
    failed = MemberOutcome(member=0, attempt=attempt_of(group), result="failed", reason="engine_failed")
    whole = replace(trained_member(group, 1, born="1.0", age=1), result="dropped", reason="group_dropped")
    return _outcome(group, at=at, seq=seq, result="dropped", members=(failed, whole))


def manifest(text: str) -> Manifest:
    return Manifest(
        run=RUN,
        version=version(text),
        tensors=(),
        chunks=(),
        state_digest="ab" * 32,
        num_bytes=0,
        seeds=(),
        created_unix_ms=NOW_MS,
    )


def little_run(*, sealed: bool = True) -> LittleRun:
    """A run that balances: 12 ids produced, 8 trained, 3 dropped, 1 failed."""
    run = LittleRun()
    for group in range(6):
        run.put(PROMPTS, prompt(group))
    for group, born in ((0, "1.0"), (1, "1.0"), (2, "1.0"), (3, "1.0"), (4, "1.1")):
        failure = "engine_failed" if group == 3 else None
        run.put(SAMPLES, sample(group, 0, born=born, failure=failure))
        run.put(SAMPLES, sample(group, 1, born=born))
        for member in (0, 1):
            if not (group == 3 and member == 0):
                run.put(REWARDS, reward(group, member))
    _ledger(run, sealed=sealed)
    for text in ("1.1", "1.2", "2.1", "2.2"):
        run.put(WEIGHTS, manifest(text))
    run.tombstones.append("1.0")
    return run


def _ledger(run: LittleRun, *, sealed: bool) -> None:
    for partition in (0, 1):
        first = LineageStarted(
            run=RUN, lineage=1, parent=0, branch_step=0, seq=0, holder="learner-a", started_unix_ms=NOW_MS
        )
        run.put(LEDGER, first, partition=partition)
    run.put(LEDGER, trained(0, at="1.1", seq=1))
    run.put(LEDGER, trained(1, at="1.1", seq=1))
    run.put(LEDGER, trained(2, at="1.2", seq=2))
    run.put(LEDGER, _failed(3, at="1.2", seq=2))
    for partition in (0, 1):
        again = LineageStarted(
            run=RUN, lineage=2, parent=1, branch_step=1, seq=3, holder="learner-b", started_unix_ms=NOW_MS
        )
        run.put(LEDGER, again, partition=partition)
    run.put(LEDGER, trained(2, at="2.2", seq=4))
    run.put(LEDGER, trained(4, at="2.2", seq=5, born="1.1"))
    run.put(LEDGER, _failed(3, at="2.2", seq=4))
    lost = tuple(MemberOutcome(member=m, result="dropped", reason="never_arrived") for m in range(GROUP_SIZE))
    run.put(LEDGER, replace(_outcome(5, at="2.2", seq=5, result="dropped", members=lost), attempt=None))
    if sealed:
        for partition in (0, 1):
            seal = LedgerSealed(
                run=RUN, lineage=2, step=2, seq=6, num_groups=6, reason="last step", sealed_unix_ms=NOW_MS + 40
            )
            run.put(LEDGER, seal, partition=partition)
