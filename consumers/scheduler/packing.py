"""Stragglers onto few engines: who gives up what it has left of a batch, and who goes on with it.

Role: when most of a batch has finished, its last completions are spread over all engines; brought together, they leave
the other engines free: for a version, for the next batch, for the learner.
Data in: a snapshot; data out: givers, each with its takers, or nothing. One place decides for all, so that no two
engines hand over to each other.
Invariants: the fewest engines are kept whose slots hold all that runs, those first that run the most, so that the least
is moved; never all; those kept have the free slots for what they get. Only while every engine has said what it runs, no
prompt waits that no engine has taken, nothing is parked, and the share of slots in use is below `pack_below`; not while
engines come or leave, nor again within `pack_cool_down_s`. Unknown holds.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Packing, Snapshot
from topics.catalog import PROMPTS


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one engine runs."""

    instance: str
    running: int
    slots: int


@dataclass(frozen=True, kw_only=True)
class PackStep:
    """A packing to command."""

    packing: Packing
    reason: str
    assumed: dict[str, str]


def next_pack(snapshot: Snapshot, settings: SchedulerSettings) -> PackStep | None:
    """What is to be packed now; see the module."""
    below, last = settings.pack_below, snapshot.standing.pack
    if below is None or snapshot.observed_s < settings.settle_s or num_unstarted(snapshot) != 0:
        return None
    if last is not None and snapshot.now_s < last.at_s + settings.pack_cool_down_s:
        return None
    loads = loads_of(snapshot, silence_s=settings.silence_s)
    if loads is None or _changes(snapshot, silence_s=settings.silence_s):
        return None
    running, slots = sum(load.running for load in loads), sum(load.slots for load in loads)
    if not 0 < running < below * slots:
        return None
    givers, takers = pack(loads)
    if not givers:
        return None
    packing = Packing(givers=tuple(givers), takers=tuple(givers.values()), at_s=snapshot.now_s)
    return PackStep(
        packing=packing,
        reason=f"{running} sequences on {slots} slots, no prompt waits: {len(givers)} engines give up to {len(takers)}",
        assumed={"running": str(running), "slots": str(slots), "unstarted": "0"},
    )


def num_unstarted(snapshot: Snapshot) -> int | None:
    """Prompts that no engine has taken; None: not known."""
    found = [lag for (_, topic), lag in snapshot.lag.items() if topic == PROMPTS.name]
    lag = found[0] if found else None
    if lag is None:
        return None
    return max(0, lag - int(sum(one.gauges.get("prompts_in_flight", 0.0) for one in snapshot.instances)))


def loads_of(snapshot: Snapshot, *, silence_s: float) -> list[Load] | None:
    """Of the engines that serve; None: one is silent, has not said it yet, or has trajectories that are parked: what
    an environment holds changes no engine."""
    loads: list[Load] = []
    for one in snapshot.instances:
        if one.stage != "rollout":
            continue
        running, free = one.gauges.get("running_sequences"), one.gauges.get("free_slots")
        if running is None or free is None or one.parked is not None or one.age_s(snapshot.now_s) > silence_s:
            return None
        loads.append(Load(instance=one.instance, running=int(running), slots=int(running + free)))
    return loads


def _changes(snapshot: Snapshot, *, silence_s: float) -> bool:
    """Whether another number of engines was commanded than there are; one that retires should take nothing over."""
    rollouts = [target for target in snapshot.fleet if target.target == "rollout"]
    return any(
        snapshot.replicas_heard(each, silence_s=silence_s) != snapshot.replicas_wanted(each) for each in rollouts
    )


def pack(loads: Sequence[Load]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Givers with their takers, and all engines that are kept."""
    kept = _kept(loads)
    givers = [load for load in loads if load.running and load not in kept]
    free = {load.instance: load.slots - load.running for load in kept}
    shared: dict[str, tuple[str, ...]] = {}
    for giver in sorted(givers, key=_by_load):
        shared[giver.instance] = tuple(_fill(free, giver.running))
    return shared, tuple(sorted(free))


def _kept(loads: Sequence[Load]) -> list[Load]:
    """The fewest that hold all; of those sets, the busiest engines where these do."""
    running = sum(load.running for load in loads)
    busiest = sorted(loads, key=_by_load)
    largest = sorted(loads, key=lambda load: (-load.slots, *_by_load(load)))
    num = next(
        (num for num in range(1, len(loads)) if sum(each.slots for each in largest[:num]) >= running), len(loads)
    )
    fits = sum(load.slots for load in busiest[:num]) >= running
    return busiest[:num] if fits else largest[:num]


def _by_load(load: Load) -> tuple[int, str]:
    return -load.running, load.instance


def _fill(free: dict[str, int], wanted: int) -> list[str]:
    """Take so many slots of those that have the most; gives whose."""
    takers: list[str] = []
    while wanted > 0:
        taker = max(free, key=lambda name: (free[name], name))
        if free[taker] <= 0:
            break
        taken = min(wanted, free[taker])
        free[taker] -= taken
        wanted -= taken
        takers.append(taker)
    return takers
