"""A run in one process, with or without metrics and events: `python -m ops.bench.observed JSON`, result on stdout.

Every stage but the scheduler runs on a thread of its own over a real broker; the engine and the learner are torch with
the demo's model. `with`: as it is by default, a heartbeat a second, and the exposition of every stage made every
`SCRAPE_S`, as a scrape asks for it. `without`: the same stages count nothing and tell nothing.
Invariants: the processor time is that of the whole process, the Kafka client's threads included, between two steps of
the learner, so neither start nor end is in it; engines fetch versions by themselves on both sides, as a scheduler
without events decides nothing.
Failure: `StageEnded` when a stage ends before its time, `DeadlineExceeded` when the learner stands still.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import orjson
from prometheus_client import generate_latest

from ops.run_file import RunFile, load_saved
from ops.run_stage import StageRequest, context_of
from ops.wiring import StageChoice, build_stage, open_log
from pipeline.collector import calm_collector
from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.events import Events
from pipeline.metrics import Metrics
from pipeline.stage import Stage, StageContext, live
from schemas.errors import RlweaveError
from topics.catalog import EVENTS
from topics.clock import Deadline
from topics.log import Metered, WriterSettings

SCRAPE_S = 5.0
_STAGES = ("peer", "prompts", "rollout", "reward", "learner")
_LOOK_S = 0.02
_LIMIT_S = 600.0


class StageEnded(RlweaveError):
    """A stage ended before its time; it said why on stderr."""


class NoMetrics(Metrics):
    """Counts nothing."""

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Nothing."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Nothing."""

    def absent(self, name: str, **labels: str) -> None:
        """Nothing."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Nothing."""

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None:
        """Nothing."""


class NoEvents(Events):
    """Tells nothing. Phases are kept, since the traffic of a host goes by them."""

    def notice(self, name: str, *, details: Mapping[str, str] | None = None, **gauges: float) -> None:
        """Nothing."""

    def heartbeat(self) -> None:
        """Nothing."""

    def _send(
        self,
        kind: str,
        name: str,
        *,
        gauges: Mapping[str, float] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing."""


@dataclass(frozen=True, kw_only=True)
class ObservedTask:
    """What to run."""

    side: Literal["with", "without"]
    settings: str  # file of the run
    first_step: int  # measured from here
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What it took."""

    cpu_s_per_1000: float
    samples_per_s: float
    event_bytes: int  # written between the two steps


def observe(task: ObservedTask) -> Observed:
    """Run until the last step, and stop."""
    run_file = load_saved(Path(task.settings))
    contexts = {stage: _context(stage, run_file, side=task.side) for stage in _STAGES}
    # Once before threads begin, as two of them must not be the first to import the library of the model.
    open_backend(
        run_file.rollout.engine, BackendSettings(model=run_file.model, max_sequences=1, num_threads=1)
    ).engine.close()
    stages = {stage: _build(stage, run_file, context=context) for stage, context in contexts.items()}
    threads = [_start(stages[name], context) for name, context in contexts.items()]
    scraping = _Scrapes(list(contexts.values())) if task.side == "with" else None
    learner = contexts["learner"]
    _until(task.first_step, learner, threads=threads, scraping=scraping)
    began_s, began_cpu_s, before = time.monotonic(), time.process_time(), _told(contexts)
    _until(task.first_step + task.num_steps, learner, threads=threads, scraping=scraping)
    spent_s, cpu_s, after = time.monotonic() - began_s, time.process_time() - began_cpu_s, _told(contexts)
    for context in contexts.values():
        context.stop.request("measured")
    for thread in threads:
        thread.join(60)
    num_samples = task.num_steps * run_file.run.groups_per_step * run_file.run.group_size
    return Observed(
        cpu_s_per_1000=cpu_s / num_samples * 1000,
        samples_per_s=num_samples / spent_s,
        event_bytes=after - before,
    )


class _Scrapes:
    """Makes the exposition of every stage when it is time."""

    def __init__(self, contexts: list[StageContext]) -> None:
        self._contexts = contexts
        self._due_s = 0.0

    def look(self) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + SCRAPE_S
            for context in self._contexts:
                generate_latest(context.metrics.registry)


def _context(stage: str, run_file: RunFile, *, side: str) -> StageContext:
    reward = next(iter(run_file.rewards)) if stage == "reward" else None
    request = StageRequest(stage=stage, slot=0, reward=reward, plugin=None, shadow=False)
    log = open_log(run_file, role=stage)
    context = context_of(log, run_file, request=request)
    if side == "with":
        return context
    run, name = run_file.run.name, context.instance
    metrics = NoMetrics(run=run, stage=stage, instance=name)
    mute = NoEvents(
        partial(log.writer, WriterSettings()), run=run, stage=stage, instance=name, clock=context.clock, metrics=metrics
    )
    return replace(context, metrics=metrics, events=mute)


def _build(stage: str, run_file: RunFile, *, context: StageContext) -> Stage:
    reward = next(iter(run_file.rewards)) if stage == "reward" else None
    return build_stage(StageChoice(stage=stage, slot=0, reward=reward), run_file, context=context)


def _start(stage: Stage, context: StageContext) -> threading.Thread:
    thread = threading.Thread(target=live, args=(stage, context), name=context.stage, daemon=True)
    thread.start()
    return thread


def _until(step: int, learner: StageContext, *, threads: Sequence[threading.Thread], scraping: _Scrapes | None) -> None:
    deadline = Deadline.after(_LIMIT_S)
    while learner.events.version is None or learner.events.version.step < step:
        deadline.check(f"step {step} of the learner")
        gone = [thread.name for thread in threads if not thread.is_alive()]
        if gone:
            raise StageEnded(f"{', '.join(gone)} ended before step {step} of the learner")
        if scraping is not None:
            scraping.look()
        time.sleep(_LOOK_S)


def _told(contexts: Mapping[str, StageContext]) -> int:
    """Encoded bytes of the events written so far."""
    written = [context.log.written_bytes for context in contexts.values() if isinstance(context.log, Metered)]
    return sum(each.get(EVENTS.name, 0) for each in written)


def main(task: ObservedTask) -> int:
    """Measure, print, and give the exit code."""
    calm_collector()
    try:
        found = observe(task)
    except RlweaveError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    sys.stdout.write(orjson.dumps(found).decode())
    return 0


if __name__ == "__main__":
    code = main(ObservedTask(**orjson.loads(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # stages that were left where they were have threads that the interpreter would wait for
