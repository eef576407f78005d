"""What the benchmark of metrics makes of its pairs, and that its mute side is mute. `rlweave bench metrics` runs it."""

from __future__ import annotations

import inspect

import pytest

from ops.bench.metrics import Pair, metrics_result
from ops.bench.observed import NoEvents, NoMetrics, Observed
from ops.bench.result import Noise
from pipeline.metrics import Metrics
from schemas.records import Version
from topics.catalog import EVENTS
from topics.clock import ManualClock
from topics.log import WriterSettings
from topics.memory import MemoryLog

READS = {"families", "snapshot", "expose"}


def pair(told: float, mute: float) -> Pair:
    return Pair(
        told=Observed(cpu_s_per_1000=told, samples_per_s=90.0, event_bytes=1000),
        mute=Observed(cpu_s_per_1000=mute, samples_per_s=100.0, event_bytes=0),
    )


def test_pairs_are_compared_each_by_itself() -> None:
    """One pair ran while the machine was busy: in both of its halves."""
    found = metrics_result([pair(1.1, 1.0), pair(3.3, 3.0), pair(1.1, 1.0)], count_us=0.5, noise=Noise())
    assert found.values["cost_share"] == pytest.approx(0.1)
    assert found.values["cost_cpu_s_per_1000_samples"] == pytest.approx(0.1)
    assert found.values["cost_share_min"] == found.values["cost_share_max"] == pytest.approx(0.1)
    assert "+10.0%" in found.table.text()
    assert all(isinstance(value, float | int) for value in found.values.values())


def test_the_mute_side_counts_and_tells_nothing(memory_log: MemoryLog) -> None:
    metrics = NoMetrics(run="r", stage="reward", instance="i")
    counting = [name for name, _ in inspect.getmembers(Metrics, inspect.isfunction) if not name.startswith("_")]
    assert {name for name in counting if name not in READS} == {
        name for name in vars(NoMetrics) if not name.startswith("_")
    }
    events = NoEvents(
        lambda: memory_log.writer(WriterSettings()),
        run="r",
        stage="reward",
        instance="i",
        clock=ManualClock(),
        metrics=metrics,
    )
    events.version = Version(lineage=1, step=1)
    events.enter("scoring")
    events.notice("breaker_opened", share=0.5)
    events.heartbeat()
    assert metrics.snapshot() == {}
    ((earliest, end),) = memory_log.admin().describe()[EVENTS.name].values()
    assert earliest == end == 0
