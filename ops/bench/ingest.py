"""`rlweave bench ingest`: what the learner does with a sample before it trains, as a share of raw reading.

Order: (1) a run of its own is written through our writer; (2) the two sides of `ops.bench.consumer` read it in turns,
each in a new process; (3) the run's topics are deleted.
Invariants: both sides read the same bytes of the same broker within the same minutes; the raw side is not slowed down.
Failure: `BenchError` when a consumer fails, with what it printed.
"""

from __future__ import annotations

import os
import secrets
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from ops.bench.broker import broker
from ops.bench.consumer import ConsumerTask, Measured
from ops.bench.material import make_groups, make_prompt, make_reward
from ops.bench.result import BenchResult, Noise, Number, Table, rate
from schemas.codec import encode
from schemas.errors import RlweaveError
from topics.catalog import PROMPTS, REWARDS, SAMPLES
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import WriterSettings

WRITE_LIMIT_S = 120.0
CONSUMER_LIMIT_S = 300.0


class BenchError(RlweaveError):
    """A benchmark could not be carried out."""


@dataclass(frozen=True, kw_only=True)
class IngestSize:
    """How much is read how often."""

    num_groups: int = 2500
    group_size: int = 8
    num_tokens: int = 1024
    partitions: int = 8
    groups_per_step: int = 32
    num_repeats: int = 5

    @classmethod
    def quick(cls) -> IngestSize:
        """Enough to see that it works."""
        return cls(num_groups=250, num_repeats=1)

    @property
    def num_samples(self) -> int:
        """Samples in all."""
        return self.num_groups * self.group_size


def bench_ingest(size: IngestSize, *, kafka: str | None, state_dir: Path) -> BenchResult:
    """Write, read in turns, compare.

    Raises:
        ServicesError, LogUnavailable: no broker.
        BenchError: a consumer failed.
    """
    noise = Noise()
    with broker(kafka, state_dir=state_dir) as bootstrap:
        log = KafkaLog(bootstrap, run=f"bench-{secrets.token_hex(4)}", data_partitions=size.partitions)
        log.connect(deadline=Deadline.after(10))
        log.admin().ensure_topics()
        try:
            num_bytes = _write(log, size)  # (1)
            sides = _measure(log, size, bootstrap=bootstrap)  # (2)
        finally:
            log.admin().delete_topics()  # (3)
    return _result(size, num_bytes=num_bytes, sides=sides, noise=noise)


def _write(log: KafkaLog, size: IngestSize) -> int:
    """Write all records in the order a run makes them; returns the encoded bytes of one sample."""
    writer = log.writer(WriterSettings(linger_ms=20.0))
    num_bytes = 0
    groups = make_groups(log.run, num_groups=size.num_groups, group_size=size.group_size, num_tokens=size.num_tokens)
    for number, samples in enumerate(groups):
        writer.write(PROMPTS, make_prompt(log.run, number, group_size=size.group_size, num_tokens=size.num_tokens))
        for sample in samples:
            writer.write(SAMPLES, sample)
        for sample in samples:
            writer.write(REWARDS, make_reward(sample))
        num_bytes = num_bytes if num_bytes else len(encode(samples[0]))
    writer.close(deadline=Deadline.after(WRITE_LIMIT_S))
    return num_bytes


def _measure(log: KafkaLog, size: IngestSize, *, bootstrap: str) -> dict[str, list[Measured]]:
    """Both sides in turns; the first turn only warms the broker's page cache and is not counted."""
    raw = ConsumerTask(
        side="raw",
        bootstrap=bootstrap,
        run=log.run,
        partitions=size.partitions,
        num_groups=size.num_groups,
        group_size=size.group_size,
        groups_per_step=size.groups_per_step,
    )
    sides = (raw, replace(raw, side="ours"))
    _consume(raw)
    found: dict[str, list[Measured]] = {"raw": [], "ours": []}
    for _ in range(size.num_repeats):
        for task in sides:
            found[task.side].append(_consume(task))
    return found


def _consume(task: ConsumerTask) -> Measured:
    command = [sys.executable, "-m", "ops.bench.consumer", orjson.dumps(asdict(task)).decode()]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=CONSUMER_LIMIT_S,
            env=os.environ | {"PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the {task.side} consumer did not end within {CONSUMER_LIMIT_S:g} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise BenchError(f"the {task.side} consumer ended with code {done.returncode}: {said}")
    return Measured(**orjson.loads(done.stdout))


def _result(size: IngestSize, *, num_bytes: int, sides: dict[str, list[Measured]], noise: Noise) -> BenchResult:
    share = statistics.median(
        ours.samples_per_s / raw.samples_per_s for raw, ours in zip(sides["raw"], sides["ours"], strict=True)
    )
    values: dict[str, Number] = {
        "ingest_samples_per_s": _median([each.samples_per_s for each in sides["ours"]]),
        "ingest_cpu_us_per_sample": _median([each.cpu_us_per_sample for each in sides["ours"]]),
        "ingest_max_rss_bytes": max(each.max_rss_bytes for each in sides["ours"]),
        "raw_samples_per_s": _median([each.samples_per_s for each in sides["raw"]]),
        "raw_cpu_us_per_sample": _median([each.cpu_us_per_sample for each in sides["raw"]]),
        "raw_max_rss_bytes": max(each.max_rss_bytes for each in sides["raw"]),
        "ingest_share_of_raw": share,
        "ingest_num_samples": size.num_samples,
        "ingest_tokens_per_sample": size.num_tokens,
        "ingest_bytes_per_sample": num_bytes,
        "ingest_group_size": size.group_size,
    }
    return BenchResult(
        name="ingest",
        table=_table(size, values=values, num_bytes=num_bytes),
        values=values,
        notes=(
            f"share of raw: {share:.2f} (median over pairs of one raw and one rlweave run, each in its own process)",
            "raw: the client library alone, values touched, nothing decoded. rlweave: read, decode, join with one "
            "reward, dedup, age check, batch, outcome.",
        ),
        noise=noise.values(num_repeats=size.num_repeats),
    )


def _table(size: IngestSize, *, values: dict[str, Number], num_bytes: int) -> Table:
    rows = tuple(
        (
            title,
            rate(float(values[f"{key}_samples_per_s"] or 0)),
            f"{float(values[f'{key}_cpu_us_per_sample'] or 0):.1f}",
            f"{float(values[f'{key}_max_rss_bytes'] or 0) / 2**20:,.0f}",
        )
        for key, title in (("raw", "raw librdkafka"), ("ingest", "rlweave, up to batches"))
    )
    return Table(
        title=f"{size.num_samples:,} samples of {size.num_tokens:,} tokens ({num_bytes:,} bytes each), "
        f"groups of {size.group_size}",
        headers=("consumer", "samples/s", "cpu us/sample", "peak memory MiB"),
        rows=rows,
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
