"""What happens in the benchmark, and what is measured of it.

Elasticity: (1) the load is the usual one and settles; (2) sequences take twice as long; (3) a rollout producer is
killed by its pid; (4) sequences take the usual time again. `stage_aware` decides.
Lending: (1) three slots, two rollouts and one rank; (2) a slot is lent to the learner; (3) it comes back.
Data out: seconds and counts.
Failure: `BenchError` when something does not come about.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ops.audit.report import AuditReport
from ops.bench.elastic.hindsight import needed_rollouts
from ops.bench.elastic.plan import LONG_S, MOST_ROLLOUTS, SHORT_S, USUAL_S, ElasticPlan, best_rollouts
from ops.bench.elastic.script import Script
from ops.bench.elastic.site import Site
from ops.bench.soak import BenchError
from ops.chaos.servers import Servers
from schemas.records import StageEvent

_START_S, _CHANGE_S = 120.0, 90.0  # longest waits
_KILLED = "rollout-0"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What came of a change of the load."""

    needed: float  # rollouts that would just have kept the learner busy
    best: int  # the next whole number
    within_one_s: float | None  # from the change until the number of rollouts was within one of it, and stayed so
    best_s: float | None  # the same for the number itself
    num_commands: int
    course: tuple[tuple[float, int], ...]  # seconds since the change, rollouts that run


@dataclass(frozen=True, kw_only=True)
class Elasticity:
    """Of the first course."""

    doubled: Change
    halved: Change
    restarted_s: float  # from the kill until as many processes run as before
    serving_s: float  # until the new one has weights
    lost_ids: int
    balanced: bool


@dataclass(frozen=True, kw_only=True)
class Move:
    """One change of the learner's size."""

    total_s: float  # from the command until the first step with the new size
    away_s: float  # of this, from the last step with the old size until the new ranks wait for data


@dataclass(frozen=True, kw_only=True)
class Lending:
    """Of the second course."""

    lent: Move
    returned: Move
    steps_s: dict[int, float]  # typical time of a step by number of ranks
    most_held: int  # slots, by the supervisor's heartbeats
    lost_ids: int
    balanced: bool
    steps_twice: int


@dataclass
class Count:
    """The course of a number.

    Args:
        began_s: monotonic time of the change that it follows.
        course: seconds since then, and the number from then on.
    """

    began_s: float
    course: list[tuple[float, int]] = field(default_factory=list)

    def note(self, number: int) -> None:
        """So many there are now."""
        if not self.course or self.course[-1][1] != number:
            self.course.append((time.monotonic() - self.began_s, number))

    def since_s(self, best: int, *, tolerance: int) -> float | None:
        """When it came within the tolerance of what is best for the last time; None: it is not within it."""
        found: float | None = None
        for at_s, number in self.course:
            if abs(number - best) > tolerance:
                found = None
            elif found is None:
                found = at_s
        return found


def play_elasticity(plan: ElasticPlan, *, folder: Path, servers: Servers, say: Callable[[str], None]) -> Elasticity:
    """The first course.

    Raises:
        BenchError: the run does not begin, or ends by itself.
    """
    overrides = [
        f"rollout.replicas={best_rollouts(USUAL_S)}",
        "rollout.min_replicas=1",
        f"rollout.max_replicas={MOST_ROLLOUTS}",
        "run.partitions=28",
        f"scheduler.rate_window_s={plan.window_s}",
        f"scheduler.scale_up_cool_down_s={plan.up_s}",
        f"scheduler.scale_down_cool_down_s={plan.down_s}",
        "scheduler.settle_s=1.0",
        "scheduler.silence_s=2.0",
        "scheduler.lag_interval_s=0.5",
    ]
    with Site(folder, servers=servers, overrides=overrides, say=say) as site:
        site.until(lambda: site.step() >= 3, what="the first steps", limit_s=_START_S)
        _hold(site, plan.settle_s)
        doubled = _change_load(site, LONG_S, hold_s=plan.hold_s, say=say)
        restarted_s, serving_s = _kill(site)
        say(f"a rollout was killed: as many as before after {restarted_s:.1f} s, with weights after {serving_s:.1f} s")
        halved = _change_load(site, USUAL_S, hold_s=plan.hold_down_s, say=say)
        report = site.audit()
    return Elasticity(
        doubled=doubled,
        halved=halved,
        restarted_s=restarted_s,
        serving_s=serving_s,
        lost_ids=lost_ids(report),
        balanced=report.balanced,
    )


def play_lending(plan: ElasticPlan, *, folder: Path, servers: Servers, say: Callable[[str], None]) -> Lending:
    """The second course.

    Raises:
        BenchError: the run does not begin, ends by itself, or a slot does not change sides.
    """
    overrides = [
        "run.slots=3",
        "rollout.replicas=2",
        "rollout.min_replicas=1",
        "learner.max_ranks=2",
        "learner.compare_every_steps=1",
    ]
    with Site(folder, servers=servers, overrides=overrides, say=say) as site:
        site.prompter.set(Script(sequence_s=SHORT_S))
        site.until(lambda: site.step() >= plan.lent_steps, what="the first steps", limit_s=_START_S)
        lent = _move(site, is_lent=True)
        say(f"a slot was lent to the learner after {lent.total_s:.1f} s, the learner was away for {lent.away_s:.1f} s")
        last = site.step() + plan.lent_steps
        site.until(lambda: site.step() >= last, what="steps of two ranks", limit_s=_CHANGE_S)
        returned = _move(site, is_lent=False)
        say(f"it came back after {returned.total_s:.1f} s, the learner was away for {returned.away_s:.1f} s")
        last = site.step() + plan.lent_steps
        site.until(lambda: site.step() >= last, what="steps after that", limit_s=_CHANGE_S)
        report = site.audit()
        steps = [int(event.gauges["step"]) for _, event in site.said("learner", "step")]
        return Lending(
            lent=lent,
            returned=returned,
            steps_s=_steps_s(site),
            most_held=max(map(_held, (event for _, event in site.said("supervisor", "heartbeat")))),
            lost_ids=lost_ids(report),
            balanced=report.balanced,
            steps_twice=len(steps) - len(set(steps)),
        )


def lost_ids(report: AuditReport) -> int:
    """Sample ids that have no place in the books."""
    known = report.trained + report.open
    known += sum(sum(each.values()) for each in (report.dropped, report.failed, report.other))
    return report.produced - known


def _hold(site: Site, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        site.look()


def _change_load(site: Site, sequence_s: float, *, hold_s: float, say: Callable[[str], None]) -> Change:
    before = _num_commands(site)
    site.prompter.set(Script(sequence_s=sequence_s))
    count = Count(began_s=time.monotonic())
    while time.monotonic() - count.began_s < hold_s:
        count.note(site.crew.replicas("rollout").running)
        site.look()
    since_s = count.began_s + 2 * sequence_s  # what was begun before has ended
    needed = needed_rollouts([event for at_s, event in site.heard if at_s >= since_s])
    if needed is None:
        raise BenchError(f"nothing was trained within {hold_s:g} s; {site.crew.last_words()}")
    best = math.ceil(needed)
    change = Change(
        needed=needed,
        best=best,
        within_one_s=count.since_s(best, tolerance=1),
        best_s=count.since_s(best, tolerance=0),
        num_commands=_num_commands(site) - before,
        course=tuple(count.course),
    )
    for at_s, event in site.said("scheduler", "commanded"):
        if event.details.get("kind") == "scale" and at_s >= count.began_s:
            say(f"  {at_s - count.began_s:.1f} s: {event.details['reason']}")
    path = ", ".join(f"{number} after {at_s:.1f} s" for at_s, number in change.course)
    say(f"sequences take {sequence_s:g} s, {needed:.2f} rollouts would do; there were {path}")
    return change


def _kill(site: Site) -> tuple[float, float]:
    """Kill a producer; seconds until as many run as before, and until the new one has weights."""
    before = site.crew.replicas("rollout").running
    known = {event.instance for _, event in site.said("rollout", "swapped")}
    pid = site.crew.send(_KILLED, signal.SIGKILL)
    if pid is None:
        raise BenchError(f"{_KILLED} was not there to be killed")

    def runs_again() -> bool:
        return site.crew.pid(_KILLED) not in (None, pid) and site.crew.replicas("rollout").running >= before

    def serves() -> bool:
        now = {event.instance for _, event in site.said("rollout", "swapped")}
        return any(f"-{site.crew.pid(_KILLED)}-" in name for name in now - known)

    restarted_s = site.until(runs_again, what="another producer", limit_s=_CHANGE_S)
    return restarted_s, restarted_s + site.until(serves, what="weights of another producer", limit_s=_CHANGE_S)


def _num_commands(site: Site) -> int:
    return sum(event.details.get("kind") == "scale" for _, event in site.said("scheduler", "commanded"))


def _move(site: Site, *, is_lent: bool) -> Move:
    """Have a slot change sides, and wait for the first step after that."""
    began_s = time.monotonic()
    old = {event.instance for _, event in site.heard if event.stage == "learner"}
    site.prompter.set(Script(sequence_s=SHORT_S, is_lent=is_lent))

    def stepped() -> bool:
        return site.said("learner", "step")[-1][1].instance not in old

    site.until(stepped, what="a step of the learner's new size", limit_s=_CHANGE_S)
    steps = site.said("learner", "step")
    last_s = next(at_s for at_s, event in reversed(steps) if event.instance in old)
    ready = (
        at_s
        for at_s, event in site.heard
        if event.instance == steps[-1][1].instance and (event.kind, event.name) == ("phase_began", "waiting_for_data")
    )
    return Move(total_s=steps[-1][0] - began_s, away_s=next(ready, steps[-1][0]) - last_s)


def _held(event: StageEvent) -> int:
    """Slots that rollouts and ranks hold, by a heartbeat of the supervisor."""
    names = [f"{kind}{{target={target}}}" for kind in ("replicas", "replicas_retiring") for target in _SHARING]
    return sum(int(event.gauges.get(name, 0)) for name in names)


_SHARING = ("rollout", "learner")


def _steps_s(site: Site) -> dict[int, float]:
    """Median time from step to step by the number of ranks."""
    ranks = {event.instance: int(event.gauges.get("ranks", 0)) for _, event in site.said("learner", "heartbeat")}
    spans: dict[int, list[float]] = {}
    steps = [event for _, event in site.said("learner", "step")]
    for before, after in pairwise(steps):
        if before.instance == after.instance:
            spans.setdefault(ranks.get(after.instance, 0), []).append(after.monotonic_s - before.monotonic_s)
    return {number: sorted(each)[len(each) // 2] for number, each in sorted(spans.items())}
