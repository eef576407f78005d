"""`rlweave bench observe`: three planted faults, and how soon `rlweave top` names each.

Order: (1) servers of its own; (2) the demo's work without a fault, which gives the sizes of the faults; (3) the same
with each fault in turn, every stage in a process of its own; a follower looks every second, as `rlweave top` does.
What is measured: seconds from the learner's first work to the first verdict that names the fault, and the share of the
looks from then on that do. The last screen of each, 80 by 24, is part of the notes.
Invariants: only what was started here is ended, on an interrupt, too.
Failure: `ServicesError`; `BenchError` when a run does not begin to train, or ends by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ops.bench import result
from ops.bench.observe.faults import FAULTS, Fault, Usual
from ops.bench.observe.stages import Running, running, served, set_up
from ops.bench.soak import BenchError
from ops.chaos.servers import Servers
from ops.live.measures import measures_of
from ops.live.picture import RunPicture, Verdict
from ops.live.verdict import judge
from ops.top.screen import screen

LOOK_S = 1.0
_NONE = Fault(name="none", kind="", what="no fault", overrides=())


@dataclass(frozen=True, kw_only=True)
class ObserveSize:
    """How long each is watched, in seconds."""

    watch_s: float = 60.0

    @classmethod
    def quick(cls) -> ObserveSize:
        """Enough to see that it works."""
        return cls(watch_s=30.0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was said while a fault was there."""

    fault: Fault
    looks: tuple[tuple[float, Verdict], ...]  # seconds since the learner's first work, and what was said
    last: RunPicture

    @property
    def named_s(self) -> float | None:
        """When it was first named; None: never."""
        return next((at_s for at_s, verdict in self.looks if verdict.kind == self.fault.kind), None)

    @property
    def share(self) -> float:
        """Share of the looks from then on that name it; 0: none did."""
        named_s = self.named_s
        later = [verdict for at_s, verdict in self.looks if named_s is not None and at_s >= named_s]
        return fmean(verdict.kind == self.fault.kind for verdict in later) if later else 0.0


def bench_observe(size: ObserveSize, *, say: Callable[[str], None]) -> result.BenchResult:
    """See the module.

    Raises:
        ServicesError: the servers do not start.
        BenchError: a run does not begin to train, or ends by itself.
    """
    noise = result.Noise()
    with served() as (folder, servers):  # (1)
        seen = [_watched(_NONE, folder, servers=servers, watch_s=size.watch_s)]  # (2)
        say(_line(seen[0]))
        usual = usual_of(seen[0].last)
        for plant in FAULTS:  # (3)
            seen.append(_watched(plant(usual, folder), folder, servers=servers, watch_s=size.watch_s))
            say(_line(seen[-1]))
    return observe_result(seen, noise=noise)


def usual_of(picture: RunPicture) -> Usual:
    """What the sizes of the faults follow from.

    Raises:
        BenchError: the run has not said enough.
    """
    measures, versions = measures_of(picture), [each for each in picture.versions if each.num_bytes]
    tokens = picture.last_step.get("num_tokens")
    if measures.step_s is None or not measures.samples_per_s or not tokens or not versions:
        raise BenchError("the run without a fault made too few steps to be measured", hint="is the machine very busy?")
    return Usual(
        samples_per_s=measures.samples_per_s,
        step_s=measures.step_s,
        work_s=measures.step_s * (1 - measures.learner_waits),
        step_tokens=tokens,
        version_bytes=float(versions[-1].num_bytes or 0),
    )


def observe_result(seen: Sequence[Seen], *, noise: result.Noise) -> result.BenchResult:
    """The table, the numbers, and the last screens."""
    values: dict[str, result.Number] = {}
    for each in seen[1:]:
        named_s = each.named_s
        values[f"{each.fault.name}_named_s"] = None if named_s is None else round(named_s, 1)
        values[f"{each.fault.name}_named_share"] = round(each.share, 3)
    table = result.Table(
        title="planted faults, and how soon the verdict names them",
        headers=("fault", "named after, s", "share of looks from then on"),
        rows=tuple(_row(each) for each in seen[1:]),
    )
    notes = [f"{each.fault.name}: {each.fault.what}\n\n{_screen(each.last)}\n" for each in seen]
    return result.BenchResult(
        name="observe", table=table, values=values, notes=tuple(notes), noise=noise.values(num_repeats=1)
    )


def _row(seen: Seen) -> tuple[str, str, str]:
    named_s = seen.named_s
    return seen.fault.name, "never" if named_s is None else f"{named_s:.0f}", f"{seen.share:.0%}"


def _line(seen: Seen) -> str:
    when = "" if not seen.fault.kind else f" (named after {_row(seen)[1]} s, {seen.share:.0%} from then on)"
    return f"{seen.fault.name}: {seen.fault.what}{when}: {seen.looks[-1][1].text}"


def _screen(picture: RunPicture) -> str:
    return "\n".join(line.plain for line in screen(picture, width=80, height=24))


def _watched(fault: Fault, folder: Path, *, servers: Servers, watch_s: float) -> Seen:
    run_file = set_up(f"observe-{fault.name}", folder, servers=servers, overrides=fault.overrides)
    with running(run_file) as run:
        looks, last = _looks(run, watch_s=watch_s)
    return Seen(fault=fault, looks=tuple(looks), last=last)


def _looks(run: Running, *, watch_s: float) -> tuple[list[tuple[float, Verdict]], RunPicture]:
    began_s, looks = time.monotonic(), list[tuple[float, Verdict]]()
    while True:
        time.sleep(LOOK_S)
        run.follower.turn(limit_s=0.5)
        run.check()
        picture, passed_s = run.follower.picture(spans_s=75.0), time.monotonic() - began_s
        looks.append((passed_s, judge(picture)))
        if passed_s >= watch_s:
            return looks, picture
