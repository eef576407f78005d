"""`rlweave bench observe`: three planted faults, and how soon `rlweave top` names each.

Order: (1) servers of its own; (2) the demo's work without a fault, which gives the sizes of the faults; (3) the same
with each fault in turn, every stage in a process of its own; a follower looks every second, as `rlweave top` does.
What is measured: seconds from the learner's first work to the first verdict that names the fault, and the share of the
looks from then on that do. The last screen of each, 80 by 24, is part of the notes.
Invariants: only what was started here is ended, on an interrupt, too.
Failure: `ServicesError`; `BenchError` when a run does not begin to train, or ends by itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from statistics import fmean

from ops.bench import result
from ops.bench.observe.faults import FAULTS, Fault, Usual
from ops.bench.soak import BenchError
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.demo import CONTEXT_TOKENS
from ops.live.crew import at_work
from ops.live.facts import facts_of
from ops.live.follower import Follower, FollowSettings
from ops.live.measures import measures_of
from ops.live.picture import RunPicture, Verdict
from ops.live.verdict import judge
from ops.run_ends import LogEnds
from ops.run_file import RunFile, load_run_file, save_run_file
from ops.top.screen import screen
from ops.wiring import open_log, programs
from pipeline.engines.tiny import make_tiny_model
from pipeline.stage import CONNECT_S
from pipeline.weights.tokens import load_or_create_token
from topics.clock import Deadline

LOOK_S = 1.0
_START_S = 240.0
_GRACE_S = 60.0
_STEPS = 100_000
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
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="rlweave-bench-")))
        servers = Servers(folder / "services", brokers=1)  # (1)
        leaving.callback(servers.close)
        servers.start()
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
    run_file = _set_up(fault, folder, servers=servers)
    log = open_log(run_file)
    said: list[str] = []
    crew = Crew(
        programs(run_file, settings_file=run_file.run.folder / "settings.json"),
        run_file.supervisor,
        ends=LogEnds(log, run_file=run_file),
        say=said.append,
    )
    settings = FollowSettings(heartbeat_s=run_file.run.heartbeat_s, facts=facts_of(run_file))
    with ExitStack() as leaving:
        leaving.callback(crew.stop)
        follower = leaving.enter_context(Follower(log, settings=settings))
        crew.start()
        _await_work(follower, crew)
        looks, last = _looks(follower, crew, watch_s=watch_s)
        crew.stop(grace_s=_GRACE_S)
    return Seen(fault=fault, looks=tuple(looks), last=last)


def _await_work(follower: Follower, crew: Crew) -> None:
    deadline = Deadline.after(_START_S)
    while True:
        follower.turn(limit_s=0.5)
        learners = at_work(follower.picture(spans_s=1.0).processes, "learner")
        if any(each.phase == "forward_backward" for each in learners) or follower.picture(spans_s=1.0).last_step:
            return
        _check(crew)
        if deadline.expired:
            raise BenchError(f"the learner did not begin within {_START_S:g} s: {crew.last_words()}")
        time.sleep(0.1)


def _looks(follower: Follower, crew: Crew, *, watch_s: float) -> tuple[list[tuple[float, Verdict]], RunPicture]:
    began_s, looks = time.monotonic(), list[tuple[float, Verdict]]()
    while True:
        time.sleep(LOOK_S)
        follower.turn(limit_s=0.5)
        _check(crew)
        picture, passed_s = follower.picture(spans_s=75.0), time.monotonic() - began_s
        looks.append((passed_s, judge(picture)))
        if passed_s >= watch_s:
            return looks, picture


def _check(crew: Crew) -> None:
    if crew.ended is not None:
        raise BenchError(f"the run ended by itself with code {crew.ended}: {crew.last_words()}")


def _set_up(fault: Fault, folder: Path, *, servers: Servers) -> RunFile:
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(
            path,
            overrides=[
                f'run.name="observe-{fault.name}"',
                f'run.dir="{folder}"',
                f"run.max_steps={_STEPS}",
                f'model.path="{folder / "model"}"',
                f'learner.oracle_file="{folder / "oracle.jsonl"}"',
                f'kafka.bootstrap="{servers.bootstrap}"',
                f'redis.url="{servers.redis_url}"',
                *fault.overrides,
            ],
        )
    if not run_file.model.path.exists():
        make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS)
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    load_or_create_token(run_file.run.folder / "peer-token")
    save_run_file(run_file, run_file.run.folder / "settings.json")
    return run_file
