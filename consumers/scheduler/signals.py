"""What the scheduler knows, as one frozen snapshot.

Role: folds events, manifests and lag into the input of the decision.
Data in and out: records with the local monotonic time at which they were read; a `Snapshot` out.
Invariants: ages are by the local clock only, a sender's clock is never compared with ours (promise 13); unknown is
None, never 0; an event older than one already seen of its instance changes nothing.
Failure: none; a gauge that cannot be read is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schemas.records import StageEvent, Version

_REWARD_GAUGE = re.compile(r"reward_weight\{reward=([^,=]+),group=([^,=]+)\}\Z")
LagKey = tuple[str, str]  # (consumer group, short topic name)


@dataclass(frozen=True, kw_only=True)
class RewardSeen:
    """What a reward consumer says of itself."""

    name: str
    group: str  # consumer group id
    weight: float
    breaker_open: bool

    @property
    def required(self) -> bool:
        """True when its scores enter the training signal."""
        return self.weight != 0


@dataclass(frozen=True, kw_only=True)
class InstanceSeen:
    """The stage clock of one process. Times are local monotonic seconds."""

    stage: str
    instance: str
    phase: str
    phase_since_s: float  # when the phase was first seen
    heard_s: float  # when it was last heard of
    seq: int
    gauges: Mapping[str, float] = field(default_factory=dict)
    version: Version | None = None  # served or reached

    def age_s(self, now_s: float) -> float:
        """Seconds since it was heard of."""
        return max(0.0, now_s - self.heard_s)

    @property
    def reward(self) -> RewardSeen | None:
        """For reward consumers that have said so in a heartbeat."""
        for name, weight in self.gauges.items():
            if found := _REWARD_GAUGE.match(name):
                breaker = self.gauges.get("breaker_open", 0.0)
                return RewardSeen(name=found[1], group=found[2], weight=weight, breaker_open=breaker > 0)
        return None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The commands in force, as they stand on the compacted topic."""

    published: Version | None = None
    rate: float | None = None  # groups per second; None: no limit
    heartbeat_s: float | None = None  # local time of our own last heartbeat; None: none by this process yet


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Input of the decision."""

    now_s: float
    observed_s: float  # how long this process has been listening
    instances: tuple[InstanceSeen, ...] = ()  # ordered by name
    staged: tuple[Version, ...] = ()  # versions with a manifest, ascending
    lag: Mapping[LagKey, int | None] = field(default_factory=dict)  # records; None: unknown
    standing: Standing = Standing()

    @property
    def newest_staged(self) -> Version | None:
        """The version staged last; None before the first."""
        return self.staged[-1] if self.staged else None

    def served(self) -> dict[str, Version | None]:
        """Version served, per rollout instance."""
        return {one.instance: one.version for one in self.instances if one.stage == "rollout"}


class Signals:
    """The folding side."""

    def __init__(self, *, began_s: float) -> None:
        self._began_s = began_s
        self._instances: dict[str, InstanceSeen] = {}
        self._staged: set[Version] = set()

    def add_event(self, event: StageEvent, *, now_s: float) -> None:
        """Take in one event, read at `now_s`."""
        seen = self._instances.get(event.instance)
        if seen is not None and event.seq <= seen.seq:
            return
        if event.kind == "notice" and event.name == "stopped":
            self._instances.pop(event.instance, None)
            return
        if seen is None:
            seen = InstanceSeen(
                stage=event.stage,
                instance=event.instance,
                phase="",
                phase_since_s=now_s,
                heard_s=now_s,
                seq=event.seq,
            )
        seen = replace(
            seen, heard_s=now_s, seq=event.seq, version=event.version if event.version is not None else seen.version
        )
        if event.kind == "heartbeat":
            finite = {name: value for name, value in event.gauges.items() if math.isfinite(value)}
            seen = replace(seen, gauges=finite)
        self._instances[event.instance] = _with_phase(seen, _phase_of(event), now_s=now_s)

    def add_manifest(self, version: Version) -> None:
        """A version is staged."""
        self._staged.add(version)

    def prune_manifest(self, version: Version) -> None:
        """Its manifest was taken back."""
        self._staged.discard(version)

    def forget_silent(self, *, now_s: float, after_s: float) -> list[str]:
        """Drop instances that were not heard of for longer than `after_s`; returns their names."""
        gone = [name for name, seen in self._instances.items() if seen.age_s(now_s) > after_s]
        for name in gone:
            del self._instances[name]
        return gone

    def reward_groups(self) -> list[str]:
        """Consumer groups of the rewards heard of."""
        rewards = (seen.reward for seen in self._instances.values())
        return sorted({reward.group for reward in rewards if reward is not None})

    def snapshot(self, *, now_s: float, lag: Mapping[LagKey, int | None], standing: Standing) -> Snapshot:
        """Everything, as of `now_s`."""
        return Snapshot(
            now_s=now_s,
            observed_s=now_s - self._began_s,
            instances=tuple(self._instances[name] for name in sorted(self._instances)),
            staged=tuple(sorted(self._staged)),
            lag=dict(lag),
            standing=standing,
        )


def _phase_of(event: StageEvent) -> str | None:
    """The phase an event shows; None when it shows none."""
    if event.kind == "phase_began":
        return event.name
    if event.kind == "heartbeat":
        return event.details.get("phase")
    return None


def _with_phase(seen: InstanceSeen, phase: str | None, *, now_s: float) -> InstanceSeen:
    if phase is None or phase == seen.phase:
        return seen
    return replace(seen, phase=phase, phase_since_s=now_s)
