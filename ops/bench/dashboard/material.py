"""A long run on a broker, made up: every topic a dashboard reads, in the order in which a run writes them.

Role: what is measured against; nothing is generated or trained.
Data in: a log whose topics are there. Data out: records through the real codec and writer.
Invariants: the same size gives the same records; a sample is written after its prompt and before its outcome, so times
of the broker are in the order that a real run has; one group in 16 is not trained.
Failure: `DeliveryError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ops.bench.material import make_groups, make_prompt, make_reward
from schemas.reasons import Reason, Result
from schemas.records import (
    LedgerSealed,
    LineageStarted,
    MemberOutcome,
    Outcome,
    RewardUse,
    Sample,
    StageEvent,
    Version,
    VersionRun,
)
from topics.catalog import EVENTS, LEDGER, PROMPTS, REWARDS, SAMPLES
from topics.clock import Deadline, SystemClock
from topics.log import Log, Writer, WriterSettings

STEP_S = 0.8
_ROLLOUTS = 2
_POOL = 64  # groups
_PIECE = 8  # steps that are written before a flush
_FLUSH_S = 600.0
_DELIVERY_S = 300.0  # a machine that is busy with other work is no fault
_REASONS = (Reason.STALE, Reason.NOT_SCORED, Reason.NO_SIGNAL)
_PEERS = ("prompts", "reward", "scheduler")


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """How much there is."""

    num_groups: int
    group_size: int = 8
    groups_per_step: int = 32
    num_tokens: int = 64

    @property
    def num_steps(self) -> int:
        """Steps that the groups make."""
        return -(-self.num_groups // self.groups_per_step)

    @property
    def num_samples(self) -> int:
        """Sample ids."""
        return self.num_groups * self.group_size


def write_run(log: Log, size: LongRun, *, say: Callable[[str], None]) -> None:
    """Write the run, and seal it.

    Raises:
        DeliveryError: a record was not written.
    """
    writer = log.writer(WriterSettings(delivery_timeout_s=_DELIVERY_S))
    began_ms = SystemClock().unix_ms() - round(size.num_steps * STEP_S * 1000)
    tell = _Telling(writer, run=log.run, began_ms=began_ms)
    for partition in range(log.data_partitions):
        started = LineageStarted(
            run=log.run, lineage=1, parent=0, branch_step=0, seq=0, holder="learner-bench-1-0", started_unix_ms=began_ms
        )
        writer.write(LEDGER, started, partition=partition)
    made = _made(log.run, size)
    seqs = [1] * log.data_partitions
    for step in range(1, size.num_steps + 1):
        tell.step(step, num_samples=size.groups_per_step * size.group_size)
        _write_step(writer, made, size=size, step=step, seqs=seqs)
        if step % _PIECE == 0:
            writer.flush(deadline=Deadline.after(_FLUSH_S))
        if step % max(1, size.num_steps // 10) == 0:
            say(f"dashboard: {min(size.num_groups, step * size.groups_per_step) * size.group_size} samples are written")
    _seal(writer, log, size=size, seqs=seqs)
    tell.stopped()
    writer.flush(deadline=Deadline.after(_FLUSH_S))
    writer.close(deadline=Deadline.after(5.0))


def _made(run: str, size: LongRun) -> list[list[Sample]]:
    """Groups of which all others are copies but for number and version: packing anew is not what is measured."""
    return list(make_groups(run, num_groups=_POOL, group_size=size.group_size, num_tokens=size.num_tokens))


def _write_step(writer: Writer, made: Sequence[Sequence[Sample]], *, size: LongRun, step: int, seqs: list[int]) -> None:
    born = Version(lineage=1, step=max(0, step - 1 - step % 3))
    runs = (VersionRun(num_tokens=size.num_tokens, version=born),)
    first = (step - 1) * size.groups_per_step
    outcomes: list[Outcome] = []
    for group in range(first, min(first + size.groups_per_step, size.num_groups)):
        samples = [
            replace(each, group=group, attempt=f"{group:08x}", version_runs=runs) for each in made[group % len(made)]
        ]
        prompt = make_prompt(samples[0].run, group, group_size=size.group_size, num_tokens=size.num_tokens)
        writer.write(PROMPTS, prompt)
        for sample in samples:
            writer.write(SAMPLES, sample)
            writer.write(REWARDS, make_reward(sample))
        partition = group % len(seqs)
        outcomes.append(_outcome(samples, step=step, born=born, seq=seqs[partition]))
        seqs[partition] += 1
    for outcome in outcomes:
        writer.write(LEDGER, outcome)


def _outcome(samples: Sequence[Sample], *, step: int, born: Version, seq: int) -> Outcome:
    group, attempt = samples[0].group, samples[0].attempt
    reason = str(_REASONS[group // 16 % len(_REASONS)]) if group % 16 == 15 else None
    result = Result.TRAINED if reason is None else Result.DROPPED
    member = partial(
        MemberOutcome,
        attempt=attempt,
        result=str(result),
        reason=reason,
        version=born,
        age=step - 1 - born.step,
    )
    return Outcome(
        run=samples[0].run,
        group=group,
        lineage=1,
        step=step,
        seq=seq,
        result=str(result),
        reason=reason,
        attempt=attempt,
        members=tuple(
            member(member=sample.member, rewards=(RewardUse(name="sum", value=float(sample.member % 2), weight=1.0),))
            for sample in samples
        ),
        closed_unix_ms=samples[0].finished_unix_ms,
    )


def _seal(writer: Writer, log: Log, *, size: LongRun, seqs: list[int]) -> None:
    for partition in range(log.data_partitions):
        seal = LedgerSealed(
            run=log.run,
            lineage=1,
            step=size.num_steps,
            seq=seqs[partition],
            num_groups=size.num_groups,
            reason="the last step was made",
            sealed_unix_ms=SystemClock().unix_ms(),
        )
        writer.write(LEDGER, seal, partition=partition)


class _Telling:
    """The events that the stages would write, in the pace of a step per `STEP_S`."""

    def __init__(self, writer: Writer, *, run: str, began_ms: int) -> None:
        self._writer = writer
        self._run = run
        self._began_ms = began_ms
        self._seqs: dict[str, int] = {}
        self._at_s = 0.0
        self._made = 0.0
        self._version = Version(lineage=1, step=0)

    def step(self, step: int, *, num_samples: int) -> None:
        """What is told during one step."""
        self._at_s = (step - 1) * STEP_S
        self._phases("learner", {"waiting_for_data": 0.0, "forward_backward": 0.25, "staging_weights": 0.6})
        for slot in range(_ROLLOUTS):
            self._phases(f"rollout.{slot}", {"generating": 0.05, "swapping": 0.7})
        self._version = Version(lineage=1, step=step)
        gauges = {
            "step": float(step),
            "reward_mean": 1 - 0.9 * 0.999**step,
            "loss": 0.1 / step**0.5,
            "age_mean": 1.0 + step % 3 / 3,
            "age_max": 1.0 + step % 3,
            "num_samples": float(num_samples),
        }
        self._tell("learner", "notice", name="step", gauges=gauges, after_s=0.65)
        self._made += num_samples / _ROLLOUTS
        made = {"samples_made{result=made}": self._made, "tokens_generated": 64 * self._made}
        for seat in ("learner", *(f"rollout.{slot}" for slot in range(_ROLLOUTS)), *_PEERS):
            own = made if seat.startswith("rollout") else gauges if seat == "learner" else {}
            self._tell(seat, "heartbeat", name="heartbeat", gauges=own, after_s=0.75)

    def stopped(self) -> None:
        """The last word of all."""
        for seat in list(self._seqs):
            self._tell(seat, "notice", name="stopped", gauges={}, after_s=STEP_S)

    def _phases(self, seat: str, begins: Mapping[str, float]) -> None:
        last = ""
        for phase, after_s in begins.items():
            if last:
                self._tell(seat, "phase_ended", name=last, gauges={}, after_s=after_s)
            self._tell(seat, "phase_began", name=phase, gauges={}, after_s=after_s)
            last = phase

    def _tell(self, seat: str, kind: str, *, name: str, gauges: Mapping[str, float], after_s: float) -> None:
        stage, _, slot = seat.partition(".")
        instance = f"{stage}-bench-{100 + int(slot or 0)}-abcdef"
        seq = self._seqs[seat] = self._seqs.get(seat, -1) + 1
        at_s = self._at_s + after_s
        event = StageEvent(
            run=self._run,
            stage=stage,
            instance=instance,
            kind=kind,
            name=name,
            seq=seq,
            gauges=gauges,
            details={"slot": slot} if slot and kind == "heartbeat" else {},
            version=self._version if stage in ("learner", "rollout") else None,
            monotonic_s=at_s,
            unix_ms=self._began_ms + round(at_s * 1000),
        )
        self._writer.write(EVENTS, event)
