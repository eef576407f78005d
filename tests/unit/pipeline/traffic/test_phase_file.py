"""A phase is seen at once in another process, and not believed once its writer is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.traffic.classes import GRADIENT_SYNC
from pipeline.traffic.phase_file import PhaseReader, PhaseWriter, phase_path
from topics.clock import ManualClock

WRITER = """
import sys
from pathlib import Path
from pipeline.traffic.phase_file import PhaseWriter
writer = PhaseWriter(Path(sys.argv[1]))
for line in sys.stdin:
    writer.enter(line.strip())
    print("done", flush=True)
"""


def test_a_phase_is_seen_at_once_and_unknown_before_and_after(tmp_path: Path) -> None:
    path, clock = phase_path(tmp_path), ManualClock()
    reader = PhaseReader(path, clock=clock)
    assert reader() == ""
    writer = PhaseWriter(path)
    clock.advance(1.0)
    assert reader() == ""
    assert writer.enter("forward_backward") == ""
    assert reader() == "forward_backward"
    assert writer.enter(GRADIENT_SYNC) == "forward_backward"
    assert reader() == GRADIENT_SYNC
    writer.enter("a phase of a later release")
    assert reader() == ""
    writer.enter("publishing")
    writer.close()
    assert reader() == ""
    reader.close()


def test_only_one_process_of_a_host_writes(tmp_path: Path) -> None:
    writer = PhaseWriter(phase_path(tmp_path))
    with pytest.raises(OSError, match="unavailable"):
        PhaseWriter(phase_path(tmp_path))
    writer.close()


def test_the_phase_of_a_killed_writer_is_not_believed(tmp_path: Path) -> None:
    path, clock = phase_path(tmp_path), ManualClock()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{GRADIENT_SYNC}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    reader = PhaseReader(path, clock=clock)
    assert reader() == GRADIENT_SYNC
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    clock.advance(1.0)
    assert reader() == ""
    writer = PhaseWriter(path)  # the next learner
    writer.enter("checkpointing")
    clock.advance(1.0)
    assert reader() == "checkpointing"
    writer.close()
    reader.close()
