"""`rlweave bench schedule`: what a scheduler that sees the iteration is worth, on fixed workloads.

Order: (1) every policy and every split in the simulator; (2) on real stages: both kinds of lockstep, the three best
splits of the simulator, `reactive` and `stage_aware`, one after the other on one broker; (3) both again on the workload
that drifts.
Invariants: policies see what the scheduler hears, in the simulator too; those that move slots begin with an even split;
all runs of a workload do the same steps.
Failure: `ServicesError` when the broker does not start; `BenchError` when a run does not come to its end.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from consumers.scheduler import reactive, stage_aware
from consumers.scheduler.policy import Policy
from ops.bench import result
from ops.bench.schedule.figures import Figures
from ops.bench.schedule.hearsay import SETTINGS, Hearsay
from ops.bench.schedule.plant import Plant, Rules
from ops.bench.schedule.real import RealRun, measure
from ops.bench.schedule.workload import Workload, load_workload
from ops.chaos.servers import Servers

STATIONARY, DRIFTING = "stationary", "drifting"
LOCKSTEP, TOGETHER = "lockstep", "lockstep, all slots"
MOVERS: Mapping[str, Policy] = {"reactive": reactive.decide, "stage_aware": stage_aware.decide}
OURS = "stage_aware"
NUM_BEST = 3
BUSY_SHARE = 0.7  # of the machine, at most
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ScheduleSize:
    """How long.

    Attributes:
        steps: that count, of a run that overlaps rollout and learning.
        lockstep_steps: of one that does not, which takes three times as long.
        scale: real seconds per model second.
        workloads: that are measured on real stages.
        policies: on real stages; absent: all.
    """

    steps: int = 48
    lockstep_steps: int = 10
    scale: float = 0.05
    workloads: tuple[str, ...] = (STATIONARY, DRIFTING)
    policies: tuple[str, ...] | None = None

    @classmethod
    def quick(cls) -> ScheduleSize:
        """Says whether it works: one workload, the best split and `stage_aware`, few steps."""
        return cls(steps=8, workloads=(STATIONARY,), policies=("static", OURS))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy on a split."""

    policy: str
    rollouts: int
    ranks: int

    @property
    def name(self) -> str:
        """In tables."""
        return self.policy if self.policy in (*MOVERS, TOGETHER) else f"{self.policy} {self.rollouts}/{self.ranks}"

    @property
    def is_lockstep(self) -> bool:
        """Whether rollout and learning take turns."""
        return self.policy in (LOCKSTEP, TOGETHER)


@dataclass(kw_only=True)
class Found:
    """Figures of one workload."""

    simulated: dict[str, Figures] = field(default_factory=dict)
    real: dict[str, Figures] = field(default_factory=dict)

    def best(self, figures: Mapping[str, Figures], prefix: str) -> Figures:
        """The fastest of those whose name begins so."""
        return max((one for name, one in figures.items() if name.startswith(prefix)), key=lambda one: one.samples_s)


def bench_schedule(size: ScheduleSize, *, say: Say) -> result.BenchResult:
    """See the module.

    Raises:
        ServicesError: the broker does not start.
        BenchError: a run did not come to its end.
    """
    noise = result.Noise()
    found = {name: Found(simulated=simulate_all(load_workload(name), size)) for name in (STATIONARY, DRIFTING)}  # (1)
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="rlweave-bench-")))
        servers = Servers(folder / "services", brokers=1)
        leaving.callback(servers.close)
        servers.start()
        for name in size.workloads:  # (2), (3)
            for number, candidate in enumerate(chosen(found[name], load_workload(name), size=size)):
                place = folder / "runs" / f"{name}-{number}"
                place.mkdir(parents=True)
                figures = measure(_real(candidate, name, size=size), servers=servers, folder=place)
                found[name].real[candidate.name] = figures
                say(f"{name}: {candidate.name}: {figures.samples_s:.2f} samples/s, a step {figures.step_s:.1f} s")
    return schedule_result(found, size=size, noise=noise)


def simulate_all(workload: Workload, size: ScheduleSize) -> dict[str, Figures]:
    """Every policy, and those without moves on every split."""
    splits = [(rollouts, workload.slots - rollouts) for rollouts in range(1, workload.slots)]
    every = [Candidate(policy=policy, rollouts=r, ranks=k) for policy in ("static", LOCKSTEP) for r, k in splits]
    return {one.name: simulate(one, workload, size=size) for one in (*every, *_others(workload))}


def simulate(candidate: Candidate, workload: Workload, *, size: ScheduleSize, managed: bool = True) -> Figures:
    """One policy."""
    lockstep = candidate.is_lockstep
    decide = MOVERS.get(candidate.policy)
    rules = Rules(
        rollouts=candidate.rollouts,
        ranks=candidate.ranks,
        slots=None if decide is None else workload.slots,
        max_staleness=0 if lockstep else workload.max_staleness,
        publish_lag=0 if lockstep else 1,
        extra_s=2 * workload.phase_switch_s if candidate.policy == TOGETHER else 0.0,
        managed=managed,
    )
    observer = None if decide is None else Hearsay(decide, settings=SETTINGS)
    steps = size.lockstep_steps if lockstep else size.steps
    return Plant(workload, rules, num_steps=steps, observer=observer).run(candidate.name)


def chosen(found: Found, workload: Workload, *, size: ScheduleSize) -> list[Candidate]:
    """What is run on real stages: the best splits of the simulator, and all that moves."""
    ranked = sorted(found.simulated.values(), key=lambda one: -one.samples_s)
    splits = {
        kind: [one.policy for one in ranked if one.policy.startswith(f"{kind} ")][:most]
        for kind, most in ((LOCKSTEP, 1), ("static", NUM_BEST if size.policies is None else 1))
    }
    every = [_named(name) for names in splits.values() for name in names] + list(_others(workload))
    return [one for one in every if size.policies is None or one.policy in size.policies]


def _others(workload: Workload) -> list[Candidate]:
    """Those without a split of their own."""
    slots, half = workload.slots, workload.slots // 2
    together = Candidate(policy=TOGETHER, rollouts=slots, ranks=slots)
    return [together, *(Candidate(policy=name, rollouts=half, ranks=slots - half) for name in MOVERS)]


def _named(name: str) -> Candidate:
    policy, _, split = name.rpartition(" ")
    rollouts, _, ranks = split.partition("/")
    return Candidate(policy=policy, rollouts=int(rollouts), ranks=int(ranks))


def _real(candidate: Candidate, workload: str, *, size: ScheduleSize) -> RealRun:
    lockstep = candidate.is_lockstep
    settings = load_workload(workload)
    return RealRun(
        policy=candidate.policy if candidate.policy in MOVERS else "static",
        name=candidate.name,
        workload=workload,
        rollouts=candidate.rollouts,
        ranks=candidate.ranks,
        pooled=candidate.policy in MOVERS,
        num_steps=size.lockstep_steps if lockstep else size.steps,
        scale=size.scale,
        max_staleness=0 if lockstep else settings.max_staleness,
        publish_lag=0 if lockstep else 1,
        extra_s=2 * settings.phase_switch_s if candidate.policy == TOGETHER else 0.0,
    )


def schedule_result(found: Mapping[str, Found], *, size: ScheduleSize, noise: result.Noise) -> result.BenchResult:
    """Ratios, shares, and the table. What was not run on real stages is taken from the simulator, and said so."""
    values: dict[str, result.Number] = {}
    for prefix, real in (("", True), ("simulated_", False)):
        values |= {f"{prefix}{key}": value for key, value in _values(found, real=real).items()}
    values["publish_slowdown_unmanaged_simulated"] = _round(_unmanaged(size).publish_slowdown)
    shown = [(name, kind, figures) for name, one in found.items() for kind, figures in _rows_of(one)]
    busy = [one.busy_share for each in found.values() for one in each.real.values() if one.busy_share is not None]
    values["machine_busy_share_max"] = _round(max(busy, default=math.nan))
    values["model_second_s"] = size.scale
    table = result.Table(
        title=f"{size.steps} steps; times in model seconds of {size.scale:g} s",
        headers=("policy", "", "samples/s", "step s", "data wait", "idle", "stale", "p99 delay s", "age", "commands"),
        rows=tuple(_row(figures, workload=name, kind=kind) for name, kind, figures in shown),
    )
    return result.BenchResult(
        name="schedule", table=table, values=values, notes=_notes(values, found), noise=noise.values(num_repeats=1)
    )


def _values(found: Mapping[str, Found], *, real: bool) -> dict[str, result.Number]:
    """The figures that the aims are about, from real stages where there are any."""
    stationary, drifting = (
        one.real if real and one.real else one.simulated for one in (found[STATIONARY], found[DRIFTING])
    )
    ours, moved = stationary[OURS], drifting[OURS]
    lockstep = [one for name, one in stationary.items() if name.startswith(LOCKSTEP)]
    if not lockstep:
        lockstep = [one for name, one in found[STATIONARY].simulated.items() if name.startswith(LOCKSTEP)]
    over = max(one.samples_s for one in lockstep)
    return {
        "stationary_over_lockstep": _round(ours.samples_s / over),
        "stationary_over_static": _round(ours.samples_s / _best_static(stationary)),
        "drifting_over_static": _round(moved.samples_s / _best_static(drifting)),
        "data_wait_share": _round(ours.data_wait_share),
        "rollout_idle_share": _round(ours.rollout_idle_share),
        "stale_drop_share": _round(ours.stale_drop_share),
        "publish_slowdown": _round(ours.publish_slowdown),
        "drifting_data_wait_share": _round(moved.data_wait_share),
        "drifting_rollout_idle_share": _round(moved.rollout_idle_share),
        "drifting_stale_drop_share": _round(moved.stale_drop_share),
        "max_age_versions": max(one.max_age for each in (stationary, drifting) for one in each.values()),
        "stationary_samples_per_s": _round(ours.samples_s),
        "drifting_samples_per_s": _round(moved.samples_s),
    }


def _best_static(figures: Mapping[str, Figures]) -> float:
    return max(one.samples_s for name, one in figures.items() if name.startswith("static"))


def _unmanaged(size: ScheduleSize) -> Figures:
    """Ours, when weights and checkpoints share the link as they come."""
    workload = load_workload(STATIONARY)
    ours = next(one for one in _others(workload) if one.policy == OURS)
    return simulate(ours, workload, size=size, managed=False)


def _rows_of(found: Found) -> list[tuple[str, Figures]]:
    """Real runs, each below what the simulator says of it."""
    names = list(found.real) or [
        found.best(found.simulated, prefix).policy for prefix in (f"{LOCKSTEP} ", TOGETHER, "static", *MOVERS)
    ]
    return [
        (kind, figures[name])
        for name in names
        for kind, figures in (("simulated", found.simulated), ("real", found.real))
        if name in figures
    ]


def _row(one: Figures, *, workload: str, kind: str) -> tuple[str, ...]:
    return (
        f"{workload}: {one.policy}",
        kind,
        f"{one.samples_s:.2f}",
        f"{one.step_s:.1f}",
        f"{one.data_wait_share:.1%}",
        f"{one.rollout_idle_share:.1%}",
        f"{one.stale_drop_share:.2%}",
        f"{one.delay_p99_s:.0f}",
        str(one.max_age),
        str(one.num_commands),
    )


def _notes(values: Mapping[str, result.Number], found: Mapping[str, Found]) -> tuple[str, ...]:
    simulated = [name for name, one in found.items() if not one.real]
    notes = [
        f"stage_aware: {values['stationary_over_static']} x the best split (wanted: 0.98) and "
        f"{values['stationary_over_lockstep']} x the better lockstep (2) when nothing changes; "
        f"{values['drifting_over_static']} x the best split when decoding slows down (1.10).",
        f"A publish beside a checkpoint takes {values['publish_slowdown']} x as long as alone (wanted: 1.1), "
        f"{values['publish_slowdown_unmanaged_simulated']} x without traffic classes. "
        f"Oldest sample trained: {values['max_age_versions']} versions.",
        f"The machine was busy for {values['machine_busy_share_max']} of the time at most (wanted: {BUSY_SHARE}); "
        "real figures are worth less when it is more.",
    ]
    if simulated:
        notes.append(f"From the simulator only: {', '.join(simulated)}.")
    return (*notes, *_moves(found))


def _moves(found: Mapping[str, Found]) -> Sequence[str]:
    """What stage_aware did on real stages."""
    return [f"{name}: {note}" for name, each in found.items() if OURS in each.real for note in each.real[OURS].notes]


def _round(value: float) -> result.Number:
    return None if math.isnan(value) else round(value, 3)
