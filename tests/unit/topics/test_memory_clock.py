"""The memory log waits on the clock of the deadline, so a simulation never sleeps."""

from __future__ import annotations

import time

from topics.catalog import SAMPLES
from topics.clock import Deadline, ManualClock
from topics.log import ReaderHooks, ReaderSettings
from topics.memory import MemoryLog


def test_an_empty_poll_moves_a_manual_clock_to_the_deadline() -> None:
    clock = ManualClock()
    log = MemoryLog(run="simulated", data_partitions=2, clock=clock)
    reader = log.reader(
        ReaderSettings(topics=(SAMPLES,)), hooks=ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
    )
    began_s = time.monotonic()
    assert reader.poll(10, deadline=Deadline.after(3600.0, clock=clock)) == []
    assert clock.monotonic() == 3600.0
    assert time.monotonic() - began_s < 60.0
