"""One run of a workload with real stages on a real broker, and what it came to.

Order: (1) a run of its own, model and topics; (2) peer, scheduler, prompts and reward as processes, under the
supervisor; (3) the yard, in which learner and rollout producers live; (4) figures from the yard's books and the topics.
Invariants: only what was started here is ended.
Failure: `BenchError` when the yard ends in failure, with its last words.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson

from ops.bench.schedule.figures import Figures, Tally
from ops.bench.schedule.hearsay import RATE_WINDOW_S
from ops.bench.schedule.plan import Plan
from ops.bench.schedule.plant import WARM_UP_STEPS
from ops.bench.schedule.workload import Workload, load_workload
from ops.bench.soak import BenchError
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.run_checks import check_run
from ops.run_ends import LogEnds
from ops.run_file import RunFile, load_run_file, save_run_file
from ops.wiring import open_log, programs
from pipeline.engines.tiny import make_tiny_model
from pipeline.stage import CONNECT_S
from pipeline.weights.tokens import load_or_create_token
from schemas.reasons import Reason, Result
from schemas.records import Outcome, Record, Sample, StageEvent
from topics.catalog import BY_NAME, EVENTS, LEDGER, SAMPLES, Topic, full_name
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import ReaderHooks, ReaderSettings

COOL_DOWN_STEPS = 6  # after the figures end: no prompts are admitted for the last ones, so rollouts have nothing to do
_CONTEXT_TOKENS = 8192
_PARTITIONS = 48  # many for each producer, so that all have about the same share
_PROCESSES = ("peer", "scheduler", "prompts", "reward")
_LIMIT_S = 900.0
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)


@dataclass(frozen=True, kw_only=True)
class RealRun:
    """What to run."""

    policy: str  # of the scheduler: static, reactive, stage_aware
    name: str  # in the table
    workload: str
    rollouts: int
    ranks: int
    pooled: bool
    num_steps: int
    scale: float
    max_staleness: int
    publish_lag: int
    extra_s: float = 0.0
    managed: bool = True


def measure(run: RealRun, *, servers: Servers, folder: Path) -> Figures:
    """See the module.

    Args:
        folder: of this run, empty.

    Raises:
        BenchError: the run did not come to its end.
    """
    workload = load_workload(run.workload)
    run_file = _set_up(run, workload, servers=servers, folder=folder)  # (1)
    settings, plan_file, out = folder / "settings.json", folder / "plan.json", folder / "books.json"
    Plan(
        workload=run.workload,
        num_steps=run.num_steps,
        scale=run.scale,
        rollouts=run.rollouts,
        ranks=run.ranks,
        slots=workload.slots if run.pooled else None,
        extra_s=run.extra_s,
        managed=run.managed,
        board=str(folder / "board"),
        out=str(out),
    ).write(plan_file)
    with ExitStack() as leaving:
        crew = Crew(
            [one for one in programs(run_file, settings_file=settings) if one.stage in _PROCESSES],
            run_file.supervisor,
            ends=LogEnds(open_log(run_file), run_file=run_file),
            say=lambda _: None,
        )
        leaving.callback(crew.stop, grace_s=20.0)
        crew.start()  # (2)
        busy = Busy()
        _run_yard(settings, plan_file, log=folder / "yard.log")  # (3)
        busy_share = busy.share()
    figures = _figures(run, run_file=run_file, books=orjson.loads(out.read_bytes()))
    RawLog(servers.bootstrap).delete([full_name(run_file.run.name, topic) for topic in BY_NAME.values()])
    return replace(figures, busy_share=busy_share)


def _set_up(run: RealRun, workload: Workload, *, servers: Servers, folder: Path) -> RunFile:
    name = folder.name
    scale = run.scale
    overrides = [
        f'run.name="{name}"',
        f'run.dir="{folder.parent}"',
        f"run.partitions={_PARTITIONS}",
        f"run.groups_per_step={workload.groups_per_step}",
        f"run.group_size={workload.group_size}",
        f"run.max_steps={run.num_steps + COOL_DOWN_STEPS}",
        f"run.max_staleness={run.max_staleness}",
        f"run.publish_lag_versions={run.publish_lag}",
        "run.group_deadline_s=600.0",
        f"run.heartbeat_s={_at_least(2 * scale, 0.05)}",
        f'model.path="{folder / "model"}"',
        f"prompts.max_tokens={workload.max_tokens}",
        f"rollout.replicas={run.rollouts}",
        f"rollout.max_sequences={workload.sequences_per_slot}",
        "rollout.stagger_s=0.05",
        "rollout.scheduler_silence_s=5.0",
        "learner.silent_end_s=60.0",
        "learner.silent_notice_s=10.0",
        "learner.cloning.num_steps=0",
        f"learner.checkpoint.every_steps={workload.checkpoint_every}",
        "weights.anchor_every=1",  # an engine asks the yard to decode every version, which takes the link's time
        f'kafka.bootstrap="{servers.bootstrap}"',
        f'redis.url="{servers.redis_url}"',
        f'scheduler.policy="{run.policy}"',
        f"scheduler.interval_s={_at_least(scale, 0.05)}",
        f"scheduler.heartbeat_s={_at_least(2 * scale, 0.1)}",
        f"scheduler.lag_interval_s={5 * scale}",
        f"scheduler.rate_window_s={RATE_WINDOW_S * scale}",
        "scheduler.silence_s=2.0",
        f"scheduler.settle_s={5 * scale}",
        f"scheduler.scale_up_cool_down_s={20 * scale}",
        f"scheduler.scale_down_cool_down_s={60 * scale}",
        f"scheduler.credit_hold_s={60 * scale}",
        f"scheduler.wave_limit_s={_at_least(30 * scale, 1.5)}",
    ]
    if run.pooled:
        overrides += [
            f"run.slots={workload.slots}",
            "rollout.min_replicas=1",
            f"rollout.max_replicas={workload.slots - 1}",
            f"learner.ranks={run.ranks}",
            "learner.min_ranks=1",
            f"learner.max_ranks={workload.slots - 1}",
        ]
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(path, overrides=overrides)
    check_run(run_file)
    make_tiny_model(run_file.model.path, seed=0, context_tokens=_CONTEXT_TOKENS)
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    load_or_create_token(run_file.run.folder / "peer-token")
    save_run_file(run_file, folder / "settings.json")
    return run_file


def _at_least(seconds: float, least_s: float) -> float:
    return max(seconds, least_s)


def _run_yard(settings: Path, plan: Path, *, log: Path) -> None:
    command = (sys.executable, "-m", "ops.bench.schedule.yard", str(settings), str(plan))
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            code = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the run did not end within {_LIMIT_S:g} s: {_last_words(log)}") from error
        finally:
            process.kill()  # an interrupt leaves nothing behind
    if code != 0:
        raise BenchError(f"the yard ended with code {code}: {_last_words(log)}")


def _last_words(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])


class Busy:
    """How busy the machine's processors are, by anybody who does not stand back for others (is not `nice`)."""

    def __init__(self) -> None:
        self._before = _ticks()

    def share(self) -> float:
        """Since the beginning."""
        total, idle = (now - before for now, before in zip(_ticks(), self._before, strict=True))
        return 1 - idle / total if total else 0.0


def _ticks() -> tuple[int, int]:
    """All ticks of all processors, and those that were idle or went to work of low priority."""
    fields = [int(each) for each in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]]
    return sum(fields[:8]), fields[1] + fields[3] + fields[4]


def _figures(run: RealRun, *, run_file: RunFile, books: dict[str, Any]) -> Figures:
    """(4)"""
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    marks = books["marks"]
    first, last = (marks[step - 1] for step in (WARM_UP_STEPS, run.num_steps))
    tally = Tally(num_commands=books["num_commands"])
    tally.used_s, tally.room_s = (last[key] - first[key] for key in ("used_s", "room_s"))
    tally.publishes_s = {False: books["publish_alone_s"], True: books["publish_beside_s"]}
    outcomes = [each for each in read_all(log, LEDGER) if isinstance(each, Outcome)]
    counted = [each for each in outcomes if WARM_UP_STEPS < each.step <= run.num_steps]
    _count_outcomes(tally, counted)
    tally.delays_s = _delays_s(counted, log=log, scale=run.scale)
    tally.waited_s = _waited_s(read_all(log, EVENTS), last_step=run.num_steps) / run.scale
    over_s, num_steps = last["at_s"] - first["at_s"], run.num_steps - WARM_UP_STEPS
    figures = tally.figures(run.name, over_s=over_s, num_steps=num_steps)
    return replace(figures, notes=tuple(books["notes"]))


def _count_outcomes(tally: Tally, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        for member in outcome.members:
            if member.result == Result.TRAINED:
                tally.num_trained += 1
                tally.max_age = max(tally.max_age, member.age or 0)
            elif member.reason == Reason.STALE:
                tally.num_stale += 1


def _delays_s(outcomes: Sequence[Outcome], *, log: KafkaLog, scale: float) -> list[float]:
    """Model seconds from the last sample of a group to the outcome of its step."""
    finished: dict[int, int] = {}
    for record in read_all(log, SAMPLES):
        if isinstance(record, Sample):
            finished[record.group] = max(finished.get(record.group, 0), record.finished_unix_ms)
    return [
        max(0.0, (one.closed_unix_ms - finished[one.group]) / 1000 / scale)
        for one in outcomes
        if one.result == Result.TRAINED and one.group in finished
    ]


def _waited_s(events: Sequence[Record], *, last_step: int) -> float:
    """Seconds that the learner waited for data between the first step that counts and the last one."""
    waited_s, step = 0.0, 0.0
    for event in events:
        if not isinstance(event, StageEvent) or event.stage != "learner":
            continue
        if event.kind == "notice" and event.name == "step":
            step = event.gauges.get("step", 0.0)
        elif event.kind == "phase_ended" and event.name == "waiting_for_data" and WARM_UP_STEPS <= step < last_step:
            waited_s += event.gauges.get("spent_s", 0.0)
    return waited_s


def read_all(log: KafkaLog, topic: Topic) -> list[Record]:
    """All records of a topic, as it is now."""
    reader = log.reader(ReaderSettings(topics=(topic,)), hooks=_HOOKS)
    ends, found = reader.end_positions(), []
    deadline = Deadline.after(120.0)
    while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
        deadline.check(f"{topic.name} to its end")
        found += [each.record for each in reader.poll(1000, deadline=Deadline.after(0.2)) if each.record is not None]
    reader.close()
    return found
