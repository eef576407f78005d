"""One measured consumer, in a process of its own: `python -m ops.bench.consumer JSON`, result as JSON on stdout.

Two sides read the same topics from the beginning to the end. `raw`: the client library alone, each value touched and
nothing decoded. `ours`: the learner's own way to a batch: reader, decode, join with the reward, dedup, age check, cut,
and the outcome of every group; without the optimizer step and the ledger write.
Invariants: the clock runs from the first records read to the last sample counted, so connecting is not part of it;
processor time is that of all threads of the process, the library's included.
Failure: `DeadlineExceeded` when records stop coming.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import orjson
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place

from consumers.learner.assembler import Assembler
from consumers.learner.assembler_settings import AssemblerSettings
from consumers.learner.intake import Intake
from consumers.learner.settings import LearnerSettings
from ops.bench.material import REWARD
from pipeline.collector import calm_collector
from pipeline.history import Lineages
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from schemas.records import LineageStarted
from topics.catalog import PROMPTS, REWARDS, SAMPLES, full_name
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.kafka.client import Connection, reader_config
from topics.log import ReaderSettings

SILENCE_S = 30.0
_POLL_S = 0.25
_BATCH = 1000  # as the learner's intake


@dataclass(frozen=True, kw_only=True)
class ConsumerTask:
    """What to read."""

    side: Literal["raw", "ours"]
    bootstrap: str
    run: str
    partitions: int
    num_groups: int
    group_size: int
    groups_per_step: int

    @property
    def num_records(self) -> int:
        """Prompts, samples, and one reward each."""
        return self.num_groups * (1 + 2 * self.group_size)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What it took."""

    samples_per_s: float
    cpu_us_per_sample: float
    max_rss_bytes: int


class _Meter:
    """Counts records and measures from the first ones on."""

    def __init__(self, task: ConsumerTask) -> None:
        self._task = task
        self._clock = SystemClock()
        self._num_first = 0
        self._began_s = self._began_cpu_s = 0.0
        self.num_read = 0
        self.silence = Deadline.after(SILENCE_S, clock=self._clock)

    def read(self, num: int) -> None:
        """So many records more. Call at once when they are there, before work is done on them."""
        if num == 0:
            self.silence.check(f"record {self.num_read + 1} of {self._task.num_records}")
            return
        if self.num_read == 0:
            self._num_first = num
            self._began_s, self._began_cpu_s = self._clock.monotonic(), time.process_time()
        self.num_read += num
        self.silence = Deadline.after(SILENCE_S, clock=self._clock)

    def result(self) -> Measured:
        """Per sample; the first batch had been fetched when the clock began and is not counted."""
        share = 1 - self._num_first / self._task.num_records
        num_samples = self._task.num_groups * self._task.group_size * share
        spent_s = self._clock.monotonic() - self._began_s
        return Measured(
            samples_per_s=num_samples / spent_s,
            cpu_us_per_sample=(time.process_time() - self._began_cpu_s) / num_samples * 1e6,
            max_rss_bytes=_peak_memory_bytes(),
        )


def measure_raw(task: ConsumerTask) -> Measured:
    """Read with the library alone: its defaults, and our fetch settings, which are no slower."""
    connection = Connection(bootstrap=task.bootstrap, run=task.run, data_partitions=task.partitions, overrides={})
    ours = reader_config(connection, ReaderSettings(topics=(PROMPTS, SAMPLES, REWARDS)))
    config = {name: value for name, value in ours.items() if name.startswith(("fetch.", "queued."))}
    config |= {"bootstrap.servers": task.bootstrap, "group.id": f"bench.{task.run}", "enable.auto.commit": False}
    consumer = Consumer(config)
    names = [full_name(task.run, topic) for topic in (PROMPTS, SAMPLES, REWARDS)]
    consumer.assign([Place(name, partition, 0) for name in names for partition in range(task.partitions)])
    meter = _Meter(task)
    while meter.num_read < task.num_records:
        messages = consumer.consume(_BATCH, _POLL_S)
        meter.read(len(messages))
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            message.value()
    found = meter.result()
    consumer.close()
    return found


def measure_ours(task: ConsumerTask) -> Measured:
    """Read as the learner does, up to batches and outcomes."""
    log = KafkaLog(task.bootstrap, run=task.run, data_partitions=task.partitions)
    run = RunSettings(
        name=task.run,
        partitions=task.partitions,
        groups_per_step=task.groups_per_step,
        group_size=task.group_size,
        max_staleness=task.num_groups,
    )
    context = make_context(log, run=run, stage="learner")
    settings = LearnerSettings()
    assembler = Assembler(
        AssemblerSettings.of_run(run, rewards={REWARD: 1.0}, buffer_bytes=settings.buffer_bytes),
        clock=context.clock,
        lineages=_lineages(task.run),
    )
    intake = Intake(context, assembler, settings=settings, positions={})
    meter = _Meter(task)
    step = num_samples = 0
    while num_samples < task.num_groups * task.group_size:
        assembler.tick(engine_ready=True)
        meter.read(intake.pump(deadline=Deadline.after(_POLL_S, clock=context.clock)))
        is_last = meter.num_read >= task.num_records
        while (batch := assembler.cut(step, task.groups_per_step, allow_smaller=is_last)) is not None:
            assembler.mark_trained(batch)
            assembler.take_outcomes()
            step, num_samples = batch.step, num_samples + batch.num_samples
    found = meter.result()
    intake.close()
    context.events.close(deadline=Deadline.after(SILENCE_S))
    return found


def main(argument: str) -> None:
    """Do the task given as JSON and print the result as JSON."""
    task = ConsumerTask(**orjson.loads(argument))
    calm_collector()  # as every stage process does
    found = measure_raw(task) if task.side == "raw" else measure_ours(task)
    sys.stdout.write(orjson.dumps(asdict(found)).decode() + "\n")


def _peak_memory_bytes() -> int:
    """Of this process. `ru_maxrss` alone would include what its parent had before the program was loaded."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii")) if status.exists() else None
    kib = int(found[1]) if found is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * 1024


def _lineages(run: str) -> Lineages:
    lineages = Lineages()
    lineages.add(LineageStarted(run=run, lineage=1, parent=0, branch_step=0, seq=0, holder="bench", started_unix_ms=0))
    return lineages


if __name__ == "__main__":
    main(sys.argv[1])
