"""A run of one group, written hop by hop: in memory on a clock that is moved by hand, or on a broker as time passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ops.replay.sources import Window
from schemas.packed import pack_f32, pack_i32
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
from topics.catalog import EVENTS, LEDGER, PROMPTS, REWARDS, SAMPLES, SHADOW_REWARDS, WEIGHTS, Topic, full_name
from topics.clock import Clock, Deadline, ManualClock, SystemClock
from topics.kafka.raw import RawRecord
from topics.log import Log, Writer, WriterSettings
from topics.memory import MemoryLog

RUN, PARTITIONS, GROUP = "slow", 2, 5
TRAINED, DROPPED, FAILED, OPEN = "trained", "dropped", "failed", "open"
PROMPTER, ROLLOUT, REWARD, LEARNER, SCHEDULER = (
    f"{stage}-host-1-aaaaaa" for stage in ("prompts", "rollout", "reward", "learner", "scheduler")
)
# hop -> seconds; what a life is made of, in order
HOPS: Mapping[str, float] = {
    "waits for an engine": 0.03,
    "is generated": 0.08,
    "waits for its group, is written": 0.01,
    "waits for reward sum": 0.02,
    "is scored by sum": 0.04,
    "reward sum is written": 0.01,
    "waits for its batch": 0.05,
    "is trained": 0.12,
    "is staged": 0.02,
    "is published": 0.01,
    "waits for the scheduler": 0.02,
    "waits for the engine": 0.03,
    "is fetched and verified": 0.04,
    "waits for its wave": 0.01,
    "is loaded": 0.02,
    "waits for its outcome": 0.06,
}


class MemorySource:
    """Records of a log in memory, as a `Source`."""

    may_grow = True

    def __init__(self, log: MemoryLog) -> None:
        self.run = log.run
        self.data_partitions = log.data_partitions
        self._broker = log.broker

    def window(self, topic: Topic) -> Window:
        stored = self._broker.topics[full_name(self.run, topic)]
        return {number: (each.earliest, each.end()) for number, each in enumerate(stored.partitions)}

    def read(self, topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        name = full_name(self.run, topic)
        for partition, (first, end) in ranges.items():
            found, _ = self._broker.topics[name].partitions[partition].read(first, limit=10_000)
            for offset, each in found:
                if offset < end:
                    yield RawRecord(
                        topic=name,
                        partition=partition,
                        offset=offset,
                        key=each.key,
                        value=each.value,
                        headers=tuple(each.headers),
                        unix_ms=each.unix_ms,
                    )

    def first_at(self, topic: Topic, partitions: Sequence[int], *, unix_ms: int) -> dict[int, int | None]:
        return {
            partition: next(
                (each.offset for each in self.read(topic, {partition: (0, 10**9)}) if each.unix_ms >= unix_ms), None
            )
            for partition in partitions
        }


class SlowRun:
    """Writes the records of a group as the stages do, a hop after the other.

    Args:
        fate: of member 1 of the group.
        slow: the hop that takes `more_s` longer.
        log: to write to; None: one in memory.
    """

    def __init__(
        self,
        fate: str,
        *,
        slow: str = "",
        more_s: float = 0.5,
        log: Log | None = None,
    ) -> None:
        manual = ManualClock()
        self._memory = MemoryLog(run=RUN, data_partitions=PARTITIONS, clock=manual)
        self.clock: Clock = manual if log is None else SystemClock()
        self._run = RUN if log is None else log.run
        self._fate = fate
        self._slow, self._more_s = slow, more_s
        self._writer: Writer = (self._memory if log is None else log).writer(WriterSettings(linger_ms=0.0))
        self._seqs: dict[str, int] = {}
        self.spent_s: dict[str, float] = {}  # by hop, what it really took
        self._write()
        self._writer.close(deadline=Deadline.after(20))

    @property
    def source(self) -> MemorySource:
        """Of the log in memory."""
        return MemorySource(self._memory)

    def rescore(self, *, after_s: float, plugin_version: str, num_copies: int = 1) -> None:
        """Score both members again as a shadow reward named `digits`."""
        self.clock.wait(after_s)
        now_ms = self.clock.unix_ms()
        writer = self._memory.writer(WriterSettings(linger_ms=0.0))
        for member in (0, 1) * num_copies:
            scored = replace(
                self._reward(member, begun_ms=now_ms, scored_ms=now_ms),
                name="digits",
                weight=0.0,
                value=0.25 + 0.5 * member,
                plugin_version=plugin_version,
                producer=f"reward-host-2-{plugin_version}",
            )
            writer.write(SHADOW_REWARDS, scored)
        writer.close(deadline=Deadline.after(20))

    def _pass(self, hop: str) -> None:
        began_s = self.clock.monotonic()
        self.clock.wait(HOPS[hop] + (self._more_s if hop == self._slow else 0.0))
        self.spent_s[hop] = self.clock.monotonic() - began_s

    def _write(self) -> None:
        for partition in range(PARTITIONS):
            began = LineageStarted(
                run=self._run,
                lineage=1,
                parent=0,
                branch_step=0,
                seq=0,
                holder=LEARNER,
                started_unix_ms=self.clock.unix_ms(),
            )
            self._writer.write(LEDGER, began, partition=partition)
        for group in range(GROUP + 1):
            self._writer.write(PROMPTS, self._prompt(group))
        self._pass("waits for an engine")
        started_ms = self.clock.unix_ms()
        self._pass("is generated")
        finished_ms = self.clock.unix_ms()
        self._pass("waits for its group, is written")
        for member in (0, 1):
            self._writer.write(SAMPLES, self._sample(member, started_ms=started_ms, finished_ms=finished_ms))
        if self._fate != FAILED:
            self._score()
        if self._fate == TRAINED:
            self._train()
        elif self._fate != OPEN:
            self._pass("waits for its outcome")
            self._writer.write(LEDGER, self._outcome())

    def _score(self) -> None:
        self._pass("waits for reward sum")
        begun_ms = self.clock.unix_ms()
        self._pass("is scored by sum")
        scored_ms = self.clock.unix_ms()
        self._pass("reward sum is written")
        for member in (0, 1):
            self._writer.write(REWARDS, self._reward(member, begun_ms=begun_ms, scored_ms=scored_ms))

    def _train(self) -> None:
        before = Version(lineage=1, step=0)
        self._pass("waits for its batch")
        self._event(LEARNER, "phase_began", name="forward_backward", version=before)
        self._pass("is trained")
        self._event(LEARNER, "phase_began", name="staging_weights", version=before)
        taken_ms = self.clock.unix_ms()
        self._pass("is staged")
        self._event(LEARNER, "phase_began", name="publishing", version=before)
        self._pass("is published")
        self._writer.write(LEDGER, self._outcome())
        self._writer.write(WEIGHTS, self._manifest(taken_ms))
        self._pass("waits for the scheduler")
        details = {"kind": "publish", "version": "1.1", "reason": "the newest"}
        self._event(SCHEDULER, "notice", name="commanded", details=details)
        self._pass("waits for the engine")
        begun_s = self.clock.monotonic()
        self._pass("is fetched and verified")
        fetched_s = self.clock.monotonic()
        self._pass("waits for its wave")
        self._event(ROLLOUT, "phase_began", name="swapping", version=before)
        gauges = {"fetch_s": fetched_s - begun_s, "held_s": self.clock.monotonic() - fetched_s}
        self._pass("is loaded")
        self._event(ROLLOUT, "notice", name="swapped", details={"version": "1.1"}, gauges=gauges)

    def _prompt(self, group: int) -> PromptGroup:
        return PromptGroup(
            run=self._run,
            group=group,
            group_size=2,
            text="1 + 1 =",
            sampling=SamplingParams(),
            seed=0,
            source="made",
            source_index=group,
            epoch=0,
            created_unix_ms=self.clock.unix_ms(),
        )

    def _sample(self, member: int, *, started_ms: int, finished_ms: int) -> Sample:
        fails = self._fate == FAILED and member == 1
        return Sample(
            run=self._run,
            group=GROUP,
            member=member,
            attempt="try",
            producer=ROLLOUT,
            failure=str(Reason.ENGINE_FAILED) if fails else None,
            completion_tokens=pack_i32([] if fails else [1, 2]),
            logprobs=None if fails else pack_f32([-0.5, -0.5]),
            version_runs=() if fails else (VersionRun(num_tokens=2, version=Version(lineage=1, step=0)),),
            sampling=SamplingParams(),
            seed=member,
            finish_reason="" if fails else "stop",
            started_unix_ms=started_ms,
            finished_unix_ms=finished_ms,
        )

    def _reward(self, member: int, *, begun_ms: int, scored_ms: int) -> Reward:
        return Reward(
            run=self._run,
            group=GROUP,
            member=member,
            attempt="try",
            name="sum",
            plugin_version="1",
            weight=1.0,
            value=1.0,
            sample_offset=0,
            scored_unix_ms=scored_ms,
            duration_ms=float(scored_ms - begun_ms),
            producer=REWARD,
        )

    def _outcome(self) -> Outcome:
        results = {TRAINED: Result.TRAINED, DROPPED: Result.DROPPED, FAILED: Result.DROPPED}
        return Outcome(
            run=self._run,
            group=GROUP,
            lineage=1,
            step=1,
            seq=1,
            result=results[self._fate],
            reason=None if self._fate == TRAINED else "stale",
            attempt="try",
            members=(self._member(0), self._member(1)),
            closed_unix_ms=self.clock.unix_ms(),
        )

    def _member(self, member: int) -> MemberOutcome:
        if self._fate == TRAINED:
            uses = (RewardUse(name="sum", value=1.0, weight=1.0),)
            return MemberOutcome(
                member=member,
                attempt="try",
                result=Result.TRAINED,
                version=Version(lineage=1, step=0),
                age=0,
                rewards=uses,
            )
        fails = self._fate == FAILED and member == 1
        result, reason = (Result.FAILED, Reason.ENGINE_FAILED) if fails else (Result.DROPPED, Reason.STALE)
        return MemberOutcome(member=member, attempt="try", result=result, reason=reason)

    def _manifest(self, taken_ms: int) -> Manifest:
        return Manifest(
            run=self._run,
            version=Version(lineage=1, step=1),
            tensors=(),
            chunks=(),
            state_digest="00",
            num_bytes=0,
            seeds=(),
            created_unix_ms=taken_ms,
        )

    def _event(
        self,
        instance: str,
        kind: str,
        *,
        name: str,
        version: Version | None = None,
        details: Mapping[str, str] | None = None,
        gauges: Mapping[str, float] | None = None,
    ) -> None:
        seq = self._seqs[instance] = self._seqs.get(instance, -1) + 1
        event = StageEvent(
            run=self._run,
            stage=instance.partition("-")[0],
            instance=instance,
            kind=kind,
            name=name,
            seq=seq,
            details=details if details is not None else {},
            gauges=gauges if gauges is not None else {},
            version=version,
            monotonic_s=self.clock.monotonic(),
            unix_ms=self.clock.unix_ms(),
        )
        self._writer.write(EVENTS, event)
