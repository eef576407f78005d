"""The wall clock of one process is stepped and everybody else's is not; sleeping goes on as before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ops.chaos import clocks
from ops.chaos.clocks import Clock
from ops.chaos.sleeping import sleep_for
from tests.unit.ops.chaos.chaos_support import wait_for

HOUR_S = 3600
NEAR_S = 30.0
# Prints the wall clock each time a line comes in; then sleeps, and prints how long that took by the monotonic clock.
TELLS = """
import sys, time
from ops.chaos.sleeping import sleep_for
for line in sys.stdin:
    before = time.monotonic()
    sleep_for(0.2)
    print(time.time(), time.monotonic() - before, flush=True)
"""

needs_library = pytest.mark.skipif(clocks.missing() is not None, reason=str(clocks.missing()))


def told(process: subprocess.Popen[str]) -> float:
    """How far its clock is off; it slept before it looked."""
    assert process.stdin is not None
    assert process.stdout is not None
    print("now", file=process.stdin, flush=True)
    wall_s, slept_s = process.stdout.readline().split()
    assert 0.15 < float(slept_s) < 60.0
    return float(wall_s) - time.time()


def is_off_by(process: subprocess.Popen[str], wanted_s: float) -> bool:
    return abs(told(process) - wanted_s) < NEAR_S


@needs_library
@pytest.mark.parametrize("offset_s", [40 * 24 * HOUR_S, -2 * HOUR_S])
def test_a_clock_is_stepped_and_set_back_while_sleeps_keep_their_length(tmp_path: Path, offset_s: int) -> None:
    clock = Clock(tmp_path / "one.clock")
    with subprocess.Popen(
        [sys.executable, "-c", TELLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as process:
        for wanted_s in (0, offset_s, 0):
            clock.step(wanted_s)
            wait_for(partial(is_off_by, process, wanted_s))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_a_length_of_sleep_is_kept_whole_numbers_included() -> None:
    began_s = time.monotonic()
    sleep_for(0)
    sleep_for(0.1)
    assert time.monotonic() - began_s >= 0.1
    with pytest.raises(ValueError, match="non-negative"):
        sleep_for(-1)
