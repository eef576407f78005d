"""The traffic benchmark on a real network of a few small hosts."""

from __future__ import annotations

import os
import shutil

import pytest

from ops.bench.traffic import report
from ops.bench.traffic.measure import ALONE, KINDS, MANAGED, SLOW_KINDS, UNMANAGED, measure
from ops.bench.traffic.plan import TrafficPlan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "tc", "ss")),
        reason="networks need root and iproute2",
    ),
]

PLAN = TrafficPlan(
    num_engines=2,
    size_bytes=2 * 2**20,
    chunk_bytes=64 * 2**10,
    checkpoint_bytes=24 * 2**20,  # goes on beside the publish, however late that begins
    rate_mbit=40.0,
    part_bytes=64 * 2**10,
    parallel=4,
    lead_s=0.3,
    num_repeats=1,
    num_slow_repeats=0,
)


def test_an_upload_that_is_managed_stands_back_and_one_that_is_not_does_not() -> None:
    """Times say little here, as other work shares the machine; what was sent beside the publish does."""
    said: list[str] = []
    measured = measure(PLAN, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["upload alone", *KINDS]
    (alone,), (unmanaged,), (managed,) = (measured.sets[kind] for kind in (ALONE, UNMANAGED, MANAGED))
    assert alone.upload_during_bytes_s == 0
    assert unmanaged.upload_during_bytes_s > 1.3 * managed.upload_during_bytes_s
    assert unmanaged.held_up_s == 0
    assert managed.held_up_s > 0, "how much of it is counted depends on how often it is looked at"
    assert managed.upload_s is not None
    found = report.values(measured, plan=PLAN)
    assert found["publish_managed_over_alone"] == pytest.approx(managed.seconds / alone.seconds, abs=1e-3)
    assert not [kind for kind in SLOW_KINDS if measured.sets[kind]]
    assert "at most 1.1" in report.table(measured).text()
