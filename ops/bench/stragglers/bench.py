"""`rlweave bench stragglers`: step time with and without packing, and the time to free a slot.

Steps: a pool whose slots change sides. All engines begin a batch; when slots are free, they go to the learner, which
trains `groups_per_step` complete groups on them; then they come back with the new version and begin the next batch. A
slot is free when its engine runs nothing, so without packing it waits for the longest of its completions. Rules:
- `all`: the step begins when the whole batch is complete and every slot is free (strictly synchronous); `all_packed`:
  the same with packing, whose free engines then have nothing to do;
- `wait`: when `groups_per_step` groups are complete and as many slots are free as with packing, which open up by
  themselves; the stragglers of the others go on and are trained a step later;
- `pack`: the same with the scheduler's packing: its decision and the producers' hand-over are the real ones.
Slots: one producer of two, both busy, is retired at some moment; how long until its process has ended, when it finishes
what it has, or hands over after 5 s, or at once.
What is real: rollout producers, their log, the hand-over, the decision. What is a model: decoding and learner times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ops.bench import result
from ops.bench.stragglers.pool import Complete, Pool, opened
from ops.bench.stragglers.workload import Workload

RULES = ("all", "all_packed", "wait", "pack")
HAND_OVERS = {"finish": 1e6, "hand_over_5s": 5.0, "hand_over_0s": 0.0}
_SPACING_S = 40.0  # between two retirements, so that slots are full again


@dataclass
class Steps:
    """What was seen of one rule."""

    step_s: list[float] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # that the learner had
    ages: list[int] = field(default_factory=list)  # oldest of each step
    num_tokens: int = 0  # trained
    num_moved_tokens: int = 0
    num_handed_over: int = 0


def bench_stragglers(workload: Workload, *, say: Callable[[str], None]) -> result.BenchResult:
    """Run all rules on the same workload.

    Args:
        say: gets a line when a part is done.

    Raises:
        DeadlineExceeded: engines do not come to a version.
    """
    noise = result.Noise()
    steps: dict[str, Steps] = {}
    freed: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="rlweave-bench-") as folder:
        for rule in RULES:
            steps[rule] = run_steps(workload, Path(folder) / rule, rule=rule)
            say(f"steps, {rule}: done")
        for name, hand_over_s in HAND_OVERS.items():
            freed[name] = run_retirements(workload, Path(folder) / name, hand_over_s=hand_over_s)
            say(f"slots, {name}: done")
    return _result(workload, steps, freed=freed, noise=noise)


def run_steps(workload: Workload, folder: Path, *, rule: str) -> Steps:
    """The steps of one rule."""
    found = Steps()
    with opened(workload, folder, num_engines=workload.num_engines) as pool:
        pool.admit(0 if rule.startswith("all") else workload.spare_groups)
        for step in range(1, workload.num_steps + 1):
            began_s = pool.now_s
            pool.admit(workload.groups_per_step)
            num_slots = _until_slots(pool, rule=rule)
            batch = _cut(pool)
            num_tokens = sum(each.num_tokens for each in batch)
            _run_for(pool, 2 * workload.switch_s + workload.learner_s(num_tokens, num_slots=num_slots))
            pool.publish(step, trained=[each.group for each in batch])
            if step > workload.num_warm_steps:
                found.step_s.append(pool.now_s - began_s)
                found.slots.append(num_slots)
                found.ages.append(max(step - 1 - each.born.step for each in batch))
                found.num_tokens += num_tokens
        found.num_moved_tokens, found.num_handed_over = pool.num_moved_tokens, pool.num_handed_over
    return found


def run_retirements(workload: Workload, folder: Path, *, hand_over_s: float) -> list[float]:
    """Model seconds from the request to retire to the end of the process, each."""
    found: list[float] = []
    with opened(workload, folder, num_engines=2, hand_over_s=hand_over_s) as pool:
        pool.admit(workload.groups_per_step * (2 + workload.num_retirements // 2))
        for _ in range(workload.num_retirements):
            _run_for(pool, _SPACING_S)
            leaving, began_s = pool.workers[0], pool.now_s
            leaving.context.retire.request("lent to the learner")
            while not leaving.stage.finished:
                pool.tick()
            found.append(pool.now_s - began_s)
            pool.remove(leaving)
            newest = pool.workers[0].engine.version
            pool.add()
            if newest is not None:
                pool.settle(newest)
    return found


def _until_slots(pool: Pool, *, rule: str) -> int:
    """Go on until the learner can have slots; gives how many."""
    workload, least = pool.workload, pool.workload.num_engines
    if not rule.startswith("all"):
        at_once = workload.pack_below * workload.num_engines
        least = workload.num_engines - max(1, int(np.ceil(at_once)))
    packed = False
    while True:
        pool.tick()
        if rule in ("all_packed", "pack") and not packed:
            packed = pool.pack() is not None
        num_free = len(pool.empty())
        if len(pool.complete) >= workload.groups_per_step and num_free >= least:
            return num_free


def _cut(pool: Pool) -> list[Complete]:
    """The oldest complete groups."""
    order = sorted(pool.complete.values(), key=lambda each: (each.born, each.group))
    return order[: pool.workload.groups_per_step]


def _run_for(pool: Pool, seconds: float) -> None:
    end_s = pool.now_s + seconds
    while pool.now_s < end_s:
        pool.tick()


def _result(
    workload: Workload, steps: dict[str, Steps], *, freed: dict[str, list[float]], noise: result.Noise
) -> result.BenchResult:
    values: dict[str, result.Number] = {"engines": workload.num_engines, "pack_below": workload.pack_below}
    rows: list[tuple[str, ...]] = []
    for rule, seen in steps.items():
        p50_s, p95_s = (float(each) for each in np.percentile(seen.step_s, (50, 95)))
        tokens_per_s = seen.num_tokens / sum(seen.step_s)
        moved = seen.num_moved_tokens / seen.num_tokens
        values |= {
            f"step_{rule}_p50_s": p50_s,
            f"step_{rule}_p95_s": p95_s,
            f"step_{rule}_tokens_per_s": tokens_per_s,
            f"step_{rule}_learner_slots": float(np.mean(seen.slots)),
            f"step_{rule}_age_max": max(seen.ages),
            f"step_{rule}_moved_share": moved,
            f"step_{rule}_groups_handed_over": seen.num_handed_over,
        }
        cells = (f"{p50_s:.1f}", f"{p95_s:.1f}", f"{tokens_per_s:,.0f}", f"{np.mean(seen.slots):.1f}")
        rows.append((f"step, {rule}", *cells, str(max(seen.ages)), f"{moved:.1%}"))
    for name, times_s in freed.items():
        p50_s, p95_s = (float(each) for each in np.percentile(times_s, (50, 95)))
        values |= {f"slot_{name}_p50_s": p50_s, f"slot_{name}_p95_s": p95_s}
        rows.append((f"slot free, {name}", f"{p50_s:.1f}", f"{p95_s:.1f}", "", "", "", ""))
    for rule in ("all", "wait"):
        for percentile in ("p50", "p95"):
            ours, theirs = values[f"step_pack_{percentile}_s"], values[f"step_{rule}_{percentile}_s"]
            if ours is not None and theirs is not None:
                values[f"pack_over_{rule}_{percentile}"] = ours / theirs
    return result.BenchResult(
        name="stragglers",
        table=result.Table(
            title=f"Model seconds, {workload.num_engines} slots that change sides, {workload.num_steps} steps",
            headers=("", "p50 s", "p95 s", "tokens/s", "learner slots", "oldest age", "moved"),
            rows=tuple(rows),
        ),
        values=values,
        notes=(
            "moved: tokens of unfinished completions that went on in another engine, over tokens trained; their "
            "prefill there costs nothing in this model",
            f"pack over wait: p50 {values['pack_over_wait_p50']:.2f}, p95 {values['pack_over_wait_p95']:.2f}; "
            f"over all: p50 {values['pack_over_all_p50']:.2f}, p95 {values['pack_over_all_p95']:.2f}",
        ),
        noise=noise.values(num_repeats=workload.num_steps - workload.num_warm_steps),
    )
