"""`rlweave bench metrics`: what metrics and events cost, in processor time per 1,000 samples.

Order: (1) servers, or the broker given, and a short run that is not counted; (2) pairs of runs of `ops.bench.observed`,
with and without, each in a process and under a run name of its own, the order within a pair changing from pair to pair;
(3) what a single count costs.
What is compared: each pair by itself, so that what the machine does meanwhile is in both of its halves.
Failure: `BenchError` when a run fails, with what it printed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median, quantiles

import orjson

from ops.addresses import WITHOUT
from ops.bench.broker import broker
from ops.bench.observed import Observed, ObservedTask
from ops.bench.result import BenchResult, Noise, Number, Table
from ops.demo import CONTEXT_TOKENS
from ops.run_file import RunFile, load_run_file, save_run_file
from ops.wiring import open_log
from pipeline.engines.tiny import make_tiny_model
from pipeline.metrics import Metrics
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import RlweaveError
from topics.clock import Deadline

RUN_LIMIT_S = 900.0
_WITHOUT_END = 10_000_000
_COUNTS = 50_000


class BenchError(RlweaveError):
    """A run that was to be measured failed."""


@dataclass(frozen=True, kw_only=True)
class MetricsSize:
    """How much is measured how often."""

    num_pairs: int = 5
    first_step: int = 5
    num_steps: int = 40

    @classmethod
    def quick(cls) -> MetricsSize:
        """Enough to see that it works."""
        return cls(num_pairs=1, first_step=2, num_steps=3)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two runs, one after the other."""

    told: Observed
    mute: Observed

    @property
    def cost_s(self) -> float:
        """Processor seconds per 1,000 samples that metrics and events took."""
        return self.told.cpu_s_per_1000 - self.mute.cpu_s_per_1000

    @property
    def share(self) -> float:
        """That, as a part of what the run takes without them."""
        return self.cost_s / self.mute.cpu_s_per_1000


def bench_metrics(size: MetricsSize, *, kafka: str | None, state_dir: Path, say: Callable[[str], None]) -> BenchResult:
    """Measure.

    Raises:
        ServicesError, LogUnavailable: no broker.
        BenchError: a run failed.
    """
    noise, began_s = Noise(), time.monotonic()
    pairs: list[Pair] = []
    with broker(kafka, state_dir=state_dir) as bootstrap:  # (1)
        _run(replace(size, first_step=1, num_steps=1), side="with", bootstrap=bootstrap, say=say)
        say(f"the short run that is not counted took {time.monotonic() - began_s:.0f} s")
        for number in range(size.num_pairs):  # (2)
            sides = {side: _run(size, side=side, bootstrap=bootstrap, say=say) for side in _order(number)}
            pairs.append(Pair(told=sides["with"], mute=sides["without"]))
            cost = f"{pairs[-1].cost_s * 1000:+.1f} ms per 1,000 samples ({pairs[-1].share:+.1%})"
            say(f"pair {number + 1} of {size.num_pairs}, after {time.monotonic() - began_s:.0f} s: {cost}")
    return metrics_result(pairs, count_us=_count_us(), noise=noise)  # (3)


def metrics_result(pairs: Sequence[Pair], *, count_us: float, noise: Noise) -> BenchResult:
    """What the pairs come to."""
    costs, shares = [pair.cost_s for pair in pairs], [pair.share for pair in pairs]
    told, mute = (median(getattr(pair, side).cpu_s_per_1000 for pair in pairs) for side in ("told", "mute"))
    low, high = (min(costs), max(costs)) if len(costs) < 3 else (quantiles(costs, n=4)[0], quantiles(costs, n=4)[2])
    values: dict[str, Number] = {
        "with_cpu_s_per_1000_samples": round(told, 4),
        "without_cpu_s_per_1000_samples": round(mute, 4),
        "cost_cpu_s_per_1000_samples": round(median(costs), 4),
        "cost_cpu_s_per_1000_samples_q1": round(low, 4),
        "cost_cpu_s_per_1000_samples_q3": round(high, 4),
        "cost_share": round(median(shares), 4),
        "cost_share_min": round(min(shares), 4),
        "cost_share_max": round(max(shares), 4),
        "with_samples_per_s": round(median(pair.told.samples_per_s for pair in pairs), 1),
        "without_samples_per_s": round(median(pair.mute.samples_per_s for pair in pairs), 1),
        "event_bytes": round(median(pair.told.event_bytes for pair in pairs)),
        "count_us": round(count_us, 3),
    }
    rows = [_row(str(number), pair) for number, pair in enumerate(pairs, start=1)]
    medians = ("median", f"{told:.3f}", f"{mute:.3f}", f"{median(costs) * 1000:+.1f}", f"{values['cost_share']:+.1%}")
    table = Table(
        title="Processor seconds per 1,000 samples of a whole run, with and without metrics and events",
        headers=("pair", "with", "without", "cost, ms", "share"),
        rows=(*rows, medians),
    )
    notes = (
        f"Median of the pairs: {median(shares):+.1%}, from {min(shares):+.1%} to {max(shares):+.1%}; half of them cost "
        f"{low * 1000:+.1f} to {high * 1000:+.1f} ms; one count takes {count_us:.2f} us.",
        "The broker's own time is not in it.",
    )
    return BenchResult(
        name="metrics", table=table, values=values, notes=notes, noise=noise.values(num_repeats=len(pairs))
    )


def _row(name: str, pair: Pair) -> tuple[str, ...]:
    return (
        name,
        f"{pair.told.cpu_s_per_1000:.3f}",
        f"{pair.mute.cpu_s_per_1000:.3f}",
        f"{pair.cost_s * 1000:+.1f}",
        f"{pair.share:+.1%}",
    )


def _order(number: int) -> tuple[str, str]:
    return ("with", "without") if number % 2 == 0 else ("without", "with")


def _run(size: MetricsSize, *, side: str, bootstrap: str, say: Callable[[str], None]) -> Observed:
    """One run; another one in its place when it fails, since a broker that has just started may let a stage wait for
    too long."""
    try:
        return _run_once(size, side=side, bootstrap=bootstrap)
    except BenchError as error:
        say(f"{error.message}; it is run again")
        return _run_once(size, side=side, bootstrap=bootstrap)


def _run_once(size: MetricsSize, *, side: str, bootstrap: str) -> Observed:
    """Its topics and files are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="rlweave-bench-") as folder:
        run_file = _run_file(Path(folder), bootstrap=bootstrap)
        log = open_log(run_file)
        log.connect(deadline=Deadline.after(30))
        log.admin().ensure_topics()
        try:
            settings = Path(folder) / "settings.json"
            save_run_file(run_file, settings)
            task = ObservedTask(
                side="with" if side == "with" else "without",
                settings=str(settings),
                first_step=size.first_step,
                num_steps=size.num_steps,
            )
            return _child(task)
        finally:
            log.admin().delete_topics()


def _run_file(folder: Path, *, bootstrap: str) -> RunFile:
    """The demo's run, without an end, in one process: its own model, one engine, its reward on a thread."""
    changes = {
        "run.name": f"bench-{secrets.token_hex(4)}",
        "run.dir": str(folder),
        "run.max_steps": _WITHOUT_END,
        "model.path": str(folder / "model"),
        "kafka.bootstrap": bootstrap,
        "redis.url": WITHOUT,
        "rewards.sum.isolation": "thread",
        "learner.cloning.num_steps": 0,
        "learner.checkpoint.every_steps": _WITHOUT_END,
        "learner.silent_end_s": RUN_LIMIT_S,
        "rollout.scheduler_silence_s": 0.2,
        "rollout.stagger_s": 0.05,
        "prompts.source.size": 1_000_000,
    }
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(
            path, overrides=[f"{name}={orjson.dumps(value).decode()}" for name, value in changes.items()]
        )
    learner = run_file.learner.model_copy(update={"oracle_file": None})
    run_file = run_file.model_copy(update={"learner": learner})
    run_file.run.folder.mkdir(parents=True)
    load_or_create_token(run_file.run.folder / "peer-token")
    make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS)
    return run_file


def _child(task: ObservedTask) -> Observed:
    command = [sys.executable, "-m", "ops.bench.observed", orjson.dumps(asdict(task)).decode()]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=RUN_LIMIT_S, env=os.environ | {"PYTHONPATH": path}
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"a run {task.side} metrics did not end within {RUN_LIMIT_S:g} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise BenchError(f"a run {task.side} metrics ended with code {done.returncode}: {said}")
    return Observed(**orjson.loads(done.stdout))


def _count_us() -> float:
    """Microseconds of one count, median of five rounds."""
    metrics = Metrics(run="r", stage="s", instance="i")
    rounds = []
    for _ in range(5):
        began_s = time.process_time()
        for _ in range(_COUNTS):
            metrics.count("records_read", topic="samples")
        rounds.append((time.process_time() - began_s) / _COUNTS * 1e6)
    return median(rounds)
