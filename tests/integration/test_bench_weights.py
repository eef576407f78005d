"""The weight benchmark on a real network of a few small hosts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ops.bench.weights import report
from ops.bench.weights.measure import ALONE, ALONE_SLOW, measure, steps
from ops.bench.weights.plan import SOURCE, WeightsPlan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "tc", "ss")),
        reason="networks need root and iproute2",
    ),
]

PLAN = WeightsPlan(
    num_engines=4,
    size_bytes=4 * 2**20,
    chunk_bytes=64 * 1024,
    rate_mbit=40.0,
    num_lowered=0,
    crossing_share=0.25,
)


def test_every_scheme_ends_with_the_right_bytes_and_its_faults_come_about() -> None:
    """Times say little here, as other work shares the machine; bytes on the links do."""
    said: list[str] = []
    measured = measure(PLAN, say=said.append)
    names = [step.name for step in steps(restart_s=1.0)]
    assert list(measured.results) == names
    assert [line.partition(":")[0] for line in said] == names
    copies = {name: measured.copies(result.links.up[SOURCE], name=name) for name, result in measured.results.items()}
    assert 4.0 < copies["single_source"] < 4.5
    assert 2.0 < copies["tree"] < 2.3
    assert 1.0 < copies["chain"] < 1.2
    assert 1.0 < copies["ours"] < 2.0
    assert all(len(measured.results[name].seconds) == 1 for name in (*ALONE, *ALONE_SLOW))
    assert measured.results["ours_one_killed"].victim in PLAN.engines
    assert len(measured.results["chain_one_killed"].seconds) == 3
    assert measured.results["ours_source_killed"].victim == SOURCE
    assert measured.results["domain_seed_killed"].victim in PLAN.far_engines
    values = report.values(measured, plan=PLAN)
    assert 0 < (values["goodput_mbit"] or 0) < 40, "no more than the link lets through; how much less is the machine's"
    assert 0 < (values["slow_goodput_mbit"] or 0) < 16, "a short transfer passes partly in the burst of the link"
    assert 1.0 < (values["slow_link_copies"] or 0) < 2.0


def test_nothing_is_left_behind() -> None:
    folders = (Path("/run/netns"), Path("/dev/shm"))
    ours = f"rlweave-lab.{os.getpid()}."
    assert [
        path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.name.startswith(ours)
    ] == []
