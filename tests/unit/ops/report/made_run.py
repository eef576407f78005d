"""A run of two lineages written by hand: what each topic holds is known exactly.

Lineage 1 trains steps 1 to 3 and dies; lineage 2 starts from its step 1, so steps 2 and 3 of lineage 1 are void.
"""

from __future__ import annotations

from pathlib import Path

from ops.run_file import RunFile, parse_run_file
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.reasons import Reason, Result
from schemas.records import (
    LineageStarted,
    Manifest,
    MemberOutcome,
    Outcome,
    PromptGroup,
    Reward,
    RewardUse,
    Sample,
    SamplingParams,
    StageEvent,
    Version,
    VersionRun,
)
from topics.catalog import EVENTS, LEDGER, PROMPTS, REWARDS, SAMPLES, WEIGHTS
from topics.clock import Deadline
from topics.log import Log, Writer, WriterSettings

PARTITIONS = 4
SIZE = 2
START_MS = 1_790_000_000_000
SAMPLING = SamplingParams()


def settings(name: str, *, folder: Path) -> RunFile:
    """Settings of the run."""
    return parse_run_file(
        {
            "run": {"name": name, "dir": str(folder), "partitions": PARTITIONS, "group_size": SIZE},
            "model": {"path": "model"},
            "prompts": {"source": {"kind": "jsonl", "files": ["prompts.jsonl"]}},
            "rewards": {"sum": {"plugin": "exact_match", "weight": 2.0}},
        },
        origin="test",
    )


class MadeRun:
    """Writes records of a run."""

    def __init__(self, log: Log) -> None:
        self.run = log.run
        self._writer: Writer = log.writer(WriterSettings())
        self._partitions = log.data_partitions
        self._seqs: dict[str, int] = {}
        self._ledger_seq = 0
        self._values: dict[int, tuple[float, float]] = {}

    def prompt(self, group: int) -> None:
        self._writer.write(
            PROMPTS,
            PromptGroup(
                run=self.run,
                group=group,
                group_size=SIZE,
                text="1 + 1 =",
                sampling=SAMPLING,
                seed=0,
                source="made",
                source_index=group,
                epoch=0,
                created_unix_ms=START_MS + group * 100,
            ),
        )

    def sample(self, group: int, member: int, *, version: Version, num_tokens: int = 3) -> None:
        self._writer.write(
            SAMPLES,
            Sample(
                run=self.run,
                group=group,
                member=member,
                attempt=f"a{group}",
                producer="rollout-host-21-aaaaaa",
                completion_text="2",
                completion_tokens=pack_i32(range(num_tokens)),
                logprobs=pack_f32([-0.5] * num_tokens),
                loss_mask=pack_u8([1] * num_tokens),
                version_runs=(VersionRun(num_tokens=num_tokens, version=version),),
                sampling=SAMPLING,
                seed=member,
                finish_reason="stop",
                started_unix_ms=START_MS,
                finished_unix_ms=START_MS,
            ),
        )

    def reward(self, group: int, member: int, *, value: float, name: str = "sum") -> None:
        self._writer.write(
            REWARDS,
            Reward(
                run=self.run,
                group=group,
                member=member,
                attempt=f"a{group}",
                name=name,
                plugin_version="1",
                weight=2.0,
                value=value,
                sample_offset=0,
                scored_unix_ms=START_MS,
                duration_ms=1.0,
                producer="reward-host-31-aaaaaa",
            ),
        )

    def group(self, group: int, *, version: Version, values: tuple[float, float]) -> None:
        """A prompt with its samples and rewards."""
        self.prompt(group)
        self._values[group] = values
        for member, value in enumerate(values):
            self.sample(group, member, version=version)
            self.reward(group, member, value=value)

    def trained(self, group: int, *, at: Version, birth: Version, weight: float = 2.0) -> None:
        values = self._values.get(group, (1.0, 1.0))
        members = tuple(
            MemberOutcome(
                member=member,
                attempt=f"a{group}",
                result=Result.TRAINED,
                version=birth,
                age=at.step - 1 - birth.step,
                rewards=(RewardUse(name="sum", value=values[member], weight=weight),),
            )
            for member in range(SIZE)
        )
        self._outcome(group, at=at, result=Result.TRAINED, reason=None, members=members)

    def dropped(self, group: int, *, at: Version, reason: str) -> None:
        members = tuple(MemberOutcome(member=each, result=Result.DROPPED, reason=reason) for each in range(SIZE))
        self._outcome(group, at=at, result=Result.DROPPED, reason=reason, members=members)

    def lineage(self, lineage: int, *, parent: int = 0, branch_step: int = 0) -> None:
        for partition in range(self._partitions):
            record = LineageStarted(
                run=self.run,
                lineage=lineage,
                parent=parent,
                branch_step=branch_step,
                seq=self._next_ledger_seq(),
                holder="learner-host-11-aaaaaa",
                started_unix_ms=START_MS,
            )
            self._writer.write(LEDGER, record, partition=partition)

    def manifest(self, version: Version) -> None:
        record = Manifest(
            run=self.run,
            version=version,
            tensors=(),
            chunks=(),
            state_digest="00",
            num_bytes=0,
            seeds=(),
            created_unix_ms=START_MS,
        )
        self._writer.write(WEIGHTS, record)

    def retire(self, version: Version) -> None:
        self._writer.write_raw(WEIGHTS, key=str(version).encode(), value=None, partition=0)

    def event(
        self,
        instance: str,
        kind: str,
        *,
        name: str,
        at_s: float,
        gauges: dict[str, float] | None = None,
        version: Version | None = None,
        details: dict[str, str] | None = None,
    ) -> None:
        seq = self._seqs[instance] = self._seqs.get(instance, -1) + 1
        self._writer.write(
            EVENTS,
            StageEvent(
                run=self.run,
                stage=instance.partition("-")[0],
                instance=instance,
                kind=kind,
                name=name,
                seq=seq,
                gauges={} if gauges is None else gauges,
                details={} if details is None else details,
                version=version,
                monotonic_s=at_s + 50,
                unix_ms=START_MS + round(at_s * 1000),
            ),
        )

    def end(self) -> None:
        self._writer.close(deadline=Deadline.after(10))

    def _outcome(
        self, group: int, *, at: Version, result: Result, reason: str | None, members: tuple[MemberOutcome, ...]
    ) -> None:
        record = Outcome(
            run=self.run,
            group=group,
            lineage=at.lineage,
            step=at.step,
            seq=self._next_ledger_seq(),
            result=result,
            reason=reason,
            attempt=None,
            members=members,
            closed_unix_ms=START_MS,
        )
        self._writer.write(LEDGER, record)

    def _next_ledger_seq(self) -> int:
        self._ledger_seq += 1
        return self._ledger_seq - 1


def v(lineage: int, step: int) -> Version:
    """A version."""
    return Version(lineage=lineage, step=step)


def two_lineages(log: Log) -> None:
    """The run of the module text: groups 0 to 5, each of two members."""
    run = MadeRun(log)
    run.lineage(1)
    run.group(0, version=v(1, 0), values=(0.0, 1.0))
    run.trained(0, at=v(1, 1), birth=v(1, 0))
    run.group(1, version=v(1, 1), values=(0.0, 0.0))
    run.trained(1, at=v(1, 2), birth=v(1, 1))  # void
    run.group(2, version=v(1, 2), values=(1.0, 1.0))  # born in the void
    run.trained(2, at=v(1, 3), birth=v(1, 2))  # void
    run.lineage(2, parent=1, branch_step=1)
    run.trained(1, at=v(2, 2), birth=v(1, 1))
    run.dropped(2, at=v(2, 2), reason=f"{Reason.ABANDONED_BRANCH}")
    run.group(3, version=v(2, 1), values=(1.0, 1.0))
    run.trained(3, at=v(2, 3), birth=v(2, 1))
    run.prompt(4)
    run.dropped(4, at=v(2, 3), reason=f"{Reason.INCOMPLETE}: 0/2")
    run.prompt(5)
    run.sample(5, 0, version=v(2, 2))  # open, not scored
    for version in (v(1, 0), v(1, 1), v(1, 2), v(1, 3), v(2, 1), v(2, 2), v(2, 3)):
        run.manifest(version)
    run.retire(v(1, 0))
    _events(run)
    run.end()


def _events(run: MadeRun) -> None:
    first, second = "learner-host-11-aaaaaa", "learner-host-12-bbbbbb"
    run.event(first, "phase_began", name="waiting_for_data", at_s=0)
    run.event(first, "phase_ended", name="waiting_for_data", at_s=3)
    run.event(first, "phase_began", name="forward_backward", at_s=3)
    for step, at_s in ((1, 4), (2, 5), (3, 6)):
        gauges = {"step": step, "loss": 0.5 / step}
        run.event(first, "notice", name="step", at_s=at_s, gauges=gauges, version=v(1, step))
    run.event(second, "phase_began", name="waiting_for_data", at_s=7)  # the first one was killed in its phase
    run.event(second, "phase_ended", name="waiting_for_data", at_s=8)
    for step, at_s in ((2, 9), (3, 10)):
        gauges = {"step": step, "loss": 0.1 / step}
        run.event(second, "notice", name="step", at_s=at_s, gauges=gauges, version=v(2, step))
    gauges = {"ready_groups": 1, "open_groups": 3}
    run.event(second, "heartbeat", name="heartbeat", at_s=10, gauges=gauges, version=v(2, 3))
    run.event(
        "scheduler-host-41-cccccc", "heartbeat", name="heartbeat", at_s=5, gauges={"lag_records{group=a,topic=b}": 7}
    )
