"""What to command, given what is known: a pure function.

Role: the built-in policy, `static`: publishes the newest staged version that is needed, in waves (`waves`, `need`),
keeps the heartbeat, pauses admission while a required reward cannot score, tells the measured publish lag (`credit`),
packs stragglers where that is set (`packing`). Replicas and traffic classes are for other policies, behind the same
`Policy`.
Data in and out: a `Snapshot` and the settings in; drafts of commands out, each with its reason and the state it
assumes. The scheduler and the simulator call the same function.
Invariants: no clock, no I/O, no memory: what was commanded is part of the snapshot; unknown holds what stands, it
is never taken for zero or for the maximum; at most one command per (target, kind).
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from consumers.scheduler.credit import next_credit
from consumers.scheduler.packing import next_pack
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Packing, Publishing, RewardSeen, Snapshot
from consumers.scheduler.waves import next_publish
from topics.catalog import SAMPLES

GROUP = "rlweave.policies"
RECEIVING = "weights"  # traffic class of a fetch
BUILTINS = {
    "static": "consumers.scheduler.policy:decide",
    "reactive": "consumers.scheduler.reactive:decide",
    "stage_aware": "consumers.scheduler.stage_aware:decide",
}


@dataclass(frozen=True, kw_only=True)
class CommandDraft:
    """A command before it has an epoch, a sequence number and a time."""

    target: str
    kind: str
    reason: str
    assumed: Mapping[str, str] = field(default_factory=dict)
    publish: Publishing | None = None  # kind publish
    rates: Mapping[str, float] = field(default_factory=dict)  # kinds publish, traffic: bytes per second by class
    replicas: int | None = None
    rate: float | None = None  # kind rate: groups per second; kind credit: publish lag in versions
    targets: tuple[str, ...] = ()  # kind scale: domains in which the further processes should be
    drain: bool | None = None
    pack: Packing | None = None  # kind pack


class Policy(Protocol):
    """A policy plug-in: a function of this form."""

    def __call__(self, snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]: ...


class Wish(StrEnum):
    """What one signal says of admission."""

    PAUSE = "pause"
    HOLD = "hold"  # unknown, or between the thresholds: leave it as it is
    LIFT = "lift"


def decide(snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
    """The built-in policy. Publishing comes first: engines wait for it."""
    found = (
        _publish(snapshot, settings),
        _admission(snapshot, settings),
        _credit(snapshot, settings),
        _pack(snapshot, settings),
        _heartbeat(snapshot, settings),
    )
    return [draft for draft in found if draft is not None]


def _publish(snapshot: Snapshot, settings: SchedulerSettings) -> CommandDraft | None:
    step = next_publish(snapshot, settings)
    if step is None:
        return None
    served = ",".join(f"{name}={version}" for name, version in snapshot.served().items())
    limit = settings.publish_bytes_s
    return CommandDraft(
        target="rollout",
        kind="publish",
        publish=step.publish,
        rates={} if limit is None else {RECEIVING: limit},
        reason=step.reason,
        assumed={
            "staged": str(snapshot.newest_staged),
            "published": str(snapshot.standing.published),
            "served": served,
        },
    )


def _pack(snapshot: Snapshot, settings: SchedulerSettings) -> CommandDraft | None:
    step = next_pack(snapshot, settings)
    if step is None:
        return None
    return CommandDraft(target="rollout", kind="pack", pack=step.packing, reason=step.reason, assumed=step.assumed)


def _heartbeat(snapshot: Snapshot, settings: SchedulerSettings) -> CommandDraft | None:
    last_s = snapshot.standing.heartbeat_s
    if last_s is not None and snapshot.now_s < last_s + settings.heartbeat_s:
        return None
    return CommandDraft(
        target="all",
        kind="heartbeat",
        reason="the scheduler is alive",
        assumed={"published": str(snapshot.standing.published), "num_instances": str(len(snapshot.instances))},
    )


def _credit(snapshot: Snapshot, settings: SchedulerSettings) -> CommandDraft | None:
    step = next_credit(snapshot, settings)
    if step is None:
        return None
    return CommandDraft(target="prompts", kind="credit", rate=float(step.lag), reason=step.reason, assumed=step.assumed)


def _admission(snapshot: Snapshot, settings: SchedulerSettings) -> CommandDraft | None:
    wishes = dict(_wishes(snapshot, settings))
    paused = snapshot.standing.rate == 0
    assumed = {"rate": str(snapshot.standing.rate)} | {about: str(wish) for about, wish in wishes.items()}
    against = sorted(about for about, wish in wishes.items() if wish is Wish.PAUSE)
    if against:
        if paused:
            return None
        return CommandDraft(
            target="prompts", kind="rate", rate=0.0, reason=f"pause admission: {', '.join(against)}", assumed=assumed
        )
    if not paused or Wish.HOLD in wishes.values() or snapshot.observed_s < settings.settle_s:
        return None
    return CommandDraft(
        target="prompts", kind="rate", rate=None, reason="every required reward can score", assumed=assumed
    )


def _wishes(snapshot: Snapshot, settings: SchedulerSettings) -> Iterator[tuple[str, Wish]]:
    """What speaks for pausing or lifting, by a name for people."""
    for seen in snapshot.instances:
        reward = seen.reward
        if reward is None or not reward.required:
            continue
        if reward.breaker_open:
            yield (
                f"breaker of {reward.name} in {seen.instance}",
                _breaker_wish(seen, snapshot, silence_s=settings.silence_s),
            )
        if settings.pause_lag_records is not None:
            yield f"lag of {reward.name}", _lag_wish(reward, snapshot, limit=settings.pause_lag_records)


def _breaker_wish(seen: InstanceSeen, snapshot: Snapshot, *, silence_s: float) -> Wish:
    """A process that went silent with its breaker open may be gone or not: leave things as they are until it is."""
    return Wish.PAUSE if seen.age_s(snapshot.now_s) <= silence_s else Wish.HOLD


def _lag_wish(reward: RewardSeen, snapshot: Snapshot, *, limit: int) -> Wish:
    lag = snapshot.lag.get((reward.group, SAMPLES.name))
    if lag is None:
        return Wish.HOLD
    if lag > limit:
        return Wish.PAUSE
    return Wish.LIFT if lag <= limit // 2 else Wish.HOLD
