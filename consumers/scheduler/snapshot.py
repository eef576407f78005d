"""What a decision is taken on: one frozen picture of the run.

Role: the input of a policy; `signals` and `standing` make it, and so does a simulator.
Data in and out: plain values. Times are local monotonic seconds.
Invariants: unknown is None, never 0; nothing here is compared with a sender's clock (promise 13).
Failure: none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumers.scheduler.publish_lag import LagSeen
from consumers.scheduler.stage_clock import FlowKey, PhaseKey, PhaseTime
from schemas.records import Version
from topics.catalog import PROMPTS

_REWARD_GAUGE = re.compile(r"reward_weight\{reward=([^,=]+),group=([^,=]+)\}\Z")
LagKey = tuple[str, str]  # (consumer group, short topic name)
ROLLOUT, LEARNER, REFERENCE = "rollout", "learner", "reference"  # stages, and targets of scale commands


@dataclass(frozen=True, kw_only=True)
class RewardSeen:
    """What a reward consumer says of itself."""

    name: str
    group: str  # consumer group id
    weight: float
    breaker_open: bool
    required: bool  # no sample is trained without it


@dataclass(frozen=True, kw_only=True)
class Parked:
    """Trajectories that wait for their environment: their slots serve others meanwhile, and they come back. Warm: not
    free, as each takes a slot again, and not stuck, as the environment has time limits."""

    sequences: int
    return_s: float | None = None  # predicted time until one of them goes on, when last heard; None: not known


@dataclass(frozen=True, kw_only=True)
class InstanceSeen:
    """The stage clock of one process."""

    stage: str
    instance: str
    phase: str
    phase_since_s: float  # when the phase was first seen
    heard_s: float  # when it was last heard of
    seq: int
    began_s: float = 0.0  # when it was first heard of
    gauges: Mapping[str, float] = field(default_factory=dict)
    version: Version | None = None  # served or reached; None: it has none yet
    domain: str = ""  # label of its place in the network; empty: not known

    def age_s(self, now_s: float) -> float:
        """Seconds since it was heard of."""
        return max(0.0, now_s - self.heard_s)

    @property
    def parked(self) -> Parked | None:
        """What waits for its environment; None: it has none, or nothing waits."""
        num = int(self.gauges.get("parked_sequences", 0.0))
        return Parked(sequences=num, return_s=self.gauges.get("parked_return_s")) if num > 0 else None

    @property
    def reward(self) -> RewardSeen | None:
        """For reward consumers that have said so in a heartbeat."""
        for name, weight in self.gauges.items():
            if found := _REWARD_GAUGE.match(name):
                breaker = self.gauges.get("breaker_open", 0.0)
                return RewardSeen(
                    name=found[1],
                    group=found[2],
                    weight=weight,
                    breaker_open=breaker > 0,
                    required=self.gauges.get("reward_required", weight) != 0,
                )
        return None


def owner_of(seen: InstanceSeen) -> str:
    """Whose rates the counters of a process belong to: a reward's consumer group, else the stage."""
    return seen.stage if seen.reward is None else seen.reward.group


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """The publish command in force."""

    version: Version
    targets: tuple[str, ...] = ()
    waves: tuple[tuple[str, ...], ...] = ()
    wave: int = 0
    released_s: Mapping[str, float] = field(default_factory=dict)  # since when who may load has been waited for

    @property
    def released(self) -> tuple[tuple[str, ...], ...]:
        """The waves that may load."""
        return self.waves[: max(0, self.wave + 1)]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The pack command in force."""

    givers: tuple[str, ...]  # instances that give up what they have
    takers: tuple[tuple[str, ...], ...]  # per giver, who goes on with it
    at_s: float  # when it was given, or read back


@dataclass(frozen=True, kw_only=True)
class Scalable:
    """Processes of one kind, the number of which may be changed while the run goes on."""

    target: str  # "rollout", "learner" (its ranks), "reference", "reward.NAME"
    group: str  # consumer group whose members they are; empty: none
    least: int
    most: int
    initial: int  # number at the start of the run

    @property
    def stage(self) -> str:
        """Their stage."""
        return self.target.partition(".")[0]

    @property
    def owner(self) -> str:
        """Whose rates and shares theirs are, as of `owner_of`."""
        return self.stage if self.target in (ROLLOUT, LEARNER, REFERENCE) else self.group


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A scale command in force."""

    replicas: int
    at_s: float  # when it was given, or read back
    before: int | None = None  # of the command before it; None: there was none


@dataclass(frozen=True, kw_only=True)
class Credited:
    """The credit command in force."""

    lag: int  # versions
    at_s: float  # when it was given, or read back


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The commands in force, as they stand on the compacted topic."""

    publish: Publishing | None = None
    rate: float | None = None  # groups per second; None: no limit
    scale: Mapping[str, Scaled] = field(default_factory=dict)  # by target; absent: as at the start of the run
    credit: Credited | None = None  # None: the run file's publish lag counts
    traffic: Mapping[str, float] | None = None  # rates of hosts by class (pipeline.traffic.permit); None: the settings'
    pack: Packing | None = None
    heartbeat_s: float | None = None  # time of our own last heartbeat; None: none by this process yet

    @property
    def published(self) -> Version | None:
        """The version that engines were told to serve."""
        return None if self.publish is None else self.publish.version


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Input of the decision."""

    now_s: float
    observed_s: float  # how long this process has been listening
    instances: tuple[InstanceSeen, ...] = ()  # ordered by name
    stopped: frozenset[str] = frozenset()  # instances that said good-bye
    staged: tuple[Version, ...] = ()  # versions of the surviving history with a manifest, ascending
    horizon: Version | None = None  # the newest version that can exist; None: not known
    newest_since_s: float | None = None  # when the newest of them was first seen
    publish_s: float | None = None  # what an engine will take to fetch and load it; None: not known
    publish_lag: LagSeen = field(default_factory=LagSeen)  # how far behind generation begins
    lag: Mapping[LagKey, int | None] = field(default_factory=dict)  # records; None: unknown
    times: Mapping[PhaseKey, PhaseTime] = field(default_factory=dict)  # how long phases take; absent: none ended yet
    rates: Mapping[FlowKey, float] = field(default_factory=dict)  # per second; absent: not known
    late_rates: Mapping[FlowKey, float] = field(default_factory=dict)  # the same over the last half of that time
    shares: Mapping[PhaseKey, float] = field(default_factory=dict)  # of time lately; absent: none of it was seen
    slot_use: float | None = None  # mean share of the engines' slots in use lately; None: not known
    fleet: tuple[Scalable, ...] = ()  # what has a number of replicas that may be changed
    slots: int | None = None  # that rollouts and learner ranks share; None: they share none
    groups_per_step: int = 1
    group_size: int = 1
    max_steps: int | None = None
    max_staleness: int | None = None  # versions; None: not known
    standing: Standing = Standing()

    @property
    def newest_staged(self) -> Version | None:
        """The version staged last; None before the first."""
        return self.staged[-1] if self.staged else None

    @property
    def steps_left(self) -> int | None:
        """Steps that the run has still to do; None: not known."""
        if self.max_steps is None or self.horizon is None:
            return None
        return max(0, self.max_steps - self.horizon.step)

    def num_heard(self, owner: str) -> int:
        """Processes of a stage, or of a reward's consumer group, that are known of."""
        return sum(owner in (one.stage, owner_of(one)) for one in self.instances)

    def is_heard(self, stage: str, *, silence_s: float) -> bool:
        """Whether one process of the stage was heard lately."""
        return any(one.stage == stage and one.age_s(self.now_s) <= silence_s for one in self.instances)

    def replicas_wanted(self, target: Scalable) -> int:
        """The number commanded last, else that of the run's start."""
        scaled = self.standing.scale.get(target.target)
        return target.initial if scaled is None else scaled.replicas

    def room(self, target: Scalable) -> int:
        """The most replicas that it may have: its limit, or what the others leave it of the pool."""
        if self.slots is None or target.target not in (ROLLOUT, LEARNER):
            return target.most
        others = (one for one in self.fleet if one.target in (ROLLOUT, LEARNER) and one.target != target.target)
        return min(target.most, self.slots - sum(map(self.replicas_wanted, others)))

    def replicas_heard(self, target: Scalable, *, silence_s: float) -> int:
        """Processes of it that were heard lately."""
        owner = target.owner
        return sum(owner in (one.stage, owner_of(one)) and one.age_s(self.now_s) <= silence_s for one in self.instances)

    def has_unstarted_prompts(self) -> bool:
        """Whether there are more sequences to make of prompts that no engine has taken up than slots for them; unknown
        is no."""
        targets = [each for each in self.fleet if each.target == ROLLOUT]
        lag = self.lag.get((targets[0].group, PROMPTS.name)) if targets else None
        free = self.free_slots()
        if lag is None or free is None:
            return False
        taken = sum(one.gauges.get("prompts_in_flight", 0.0) for one in self.instances)
        return (lag - taken) * self.group_size > free

    def lag_s(self, key: LagKey, *, owner: str | None = None) -> float | None:
        """Seconds that the group needs for its lag at its present rate: infinite when it reads nothing, None when lag
        or rate is unknown.

        Args:
            owner: whose rate it is; None: the group's own.
        """
        of = key[0] if owner is None else owner
        lag, rate = self.lag.get(key), self.rates.get((of, f"records_read{{topic={key[1]}}}"))
        if lag is None or rate is None:
            return 0.0 if lag == 0 else None
        return lag / rate if rate > 0 else (math.inf if lag else 0.0)

    def free_slots(self) -> int | None:
        """Sequences that all engines together could take on for good: without those that will come back from their
        environments; None: not one has said so."""
        found = [one for one in self.instances if "free_slots" in one.gauges]
        warm = {one.instance: one.parked.sequences for one in found if one.parked is not None}
        free = [max(0, int(one.gauges["free_slots"]) - warm.get(one.instance, 0)) for one in found]
        return sum(free) if free else None

    def parked(self) -> Parked | None:
        """All that waits for environments, with the soonest return; None: nothing waits."""
        found = [one.parked for one in self.instances if one.parked is not None]
        returns = [each.return_s for each in found if each.return_s is not None]
        num = sum(each.sequences for each in found)
        return Parked(sequences=num, return_s=min(returns, default=None)) if num else None

    def versions_behind(self) -> dict[str, int | None]:
        """Steps by which each engine is behind the newest version there is; None: it has none, or one of another
        lineage."""
        newest = self.newest_staged
        return {
            name: None if newest is None or at is None or at.lineage != newest.lineage else newest.step - at.step
            for name, at in self.served().items()
        }

    def served(self) -> dict[str, Version | None]:
        """Version served, per rollout instance."""
        return {one.instance: one.version for one in self.instances if one.stage == "rollout"}
