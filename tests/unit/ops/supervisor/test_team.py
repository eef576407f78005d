"""A learner whose number of ranks changes: the supervisor over real processes, small scripts in the place of ranks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.supervisor.executor import Replicas
from ops.supervisor.processes import Program
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.supervisor import Supervisor
from pipeline.stage import StopSignal
from tests.unit.ops.supervisor.test_supervisor import Ends, none_left
from topics.clock import Deadline, SystemClock

# A rank: says with how many it began; SIGUSR2 makes all ranks of that number end with 0.
# Arguments: folder, rank, "--set", "ranks=N".
RANK = """
import pathlib, signal, sys, threading
folder, rank, size = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[4]
end, left = threading.Event(), folder / f"left {size}"
signal.signal(signal.SIGTERM, lambda *_: end.set())
signal.signal(signal.SIGUSR2, lambda *_: left.touch())
(folder / rank).write_text(size)
while not end.wait(0.02) and not left.exists():
    pass
"""
DEAF = RANK.replace("lambda *_: left.touch()", "signal.SIG_IGN").replace("lambda *_: end.set()", "signal.SIG_IGN")
LIMIT_S = 60.0
Step = Callable[[], bool]


class Stand:
    """A learner of one to three ranks; a test's steps each give what is to be waited for."""

    def __init__(self, folder: Path, *, script: str = RANK, complete: bool = False) -> None:
        self.folder = folder
        self.said: list[str] = []
        self._stop = StopSignal()
        is_deaf = script == DEAF
        grace_s, change_s = (0.5, 0.3) if is_deaf else (60.0, 60.0)  # others leave, however slowly
        settings = SupervisorSettings(restart_backoff_s=0.05, unit_grace_s=grace_s, change_ranks_s=change_s)
        self.supervisor = Supervisor(
            [_program(folder, rank, script=script) for rank in range(3)],
            settings,
            clock=SystemClock(),
            stop=self._stop,
            ends=Ends(complete=[complete], grace_s=1.0 if is_deaf else 60.0),
            on_event=self.said.append,
            each_turn=self._turn,
        )
        self._steps: Iterator[Step] = iter(())
        self._wanted: Step = lambda: True
        self._deadline = Deadline.after(LIMIT_S)

    def runs_with(self, size: int) -> Step:
        """So many live, and all of them know of it."""

        def holds() -> bool:
            files = [self.folder / str(rank) for rank in range(size)]
            said = [file.read_text() for file in files if file.exists()]
            is_size = self.supervisor.replicas == {"learner": Replicas(running=size, retiring=0)}
            return is_size and said == [f"ranks={size}"] * size

        return holds

    def num_starts(self) -> list[int]:
        return [len(pids) for pids in self.supervisor.pids.values()]

    def play(self, steps: Iterator[Step]) -> int:
        self._steps = steps
        code = self.supervisor.run()
        assert none_left(self.supervisor)
        return code

    def _turn(self) -> None:
        if not self._wanted():
            self._deadline.check(f"the next step; said was {self.said}, replicas are {self.supervisor.replicas}")
            return
        wanted = next(self._steps, None)
        if wanted is None:
            self._stop.request("test")
        else:
            self._wanted = wanted


def _program(folder: Path, rank: int, *, script: str) -> Program:
    return Program(
        name=f"learner-{rank}",
        stage="learner",
        arguments=(str(folder), str(rank)),
        log_file=folder / f"{rank}.log",
        command=(sys.executable, "-c", script),
        unit="learner",
        target="learner",
        spare=rank > 0,
        size_setting="ranks",
    )


def test_all_ranks_leave_and_so_many_as_are_wanted_start(tmp_path: Path) -> None:
    stand = Stand(tmp_path)

    def steps() -> Iterator[Step]:
        yield stand.runs_with(1)
        stand.supervisor.scale("learner", 2)
        yield stand.runs_with(2)
        assert stand.num_starts() == [2, 1, 0]
        (tmp_path / "left ranks=1").unlink()
        stand.supervisor.scale("learner", 3)
        stand.supervisor.scale("learner", 1)
        yield stand.runs_with(1)
        assert stand.num_starts() == [3, 1, 0]
        stand.supervisor.scale("learner", 1)

    assert stand.play(steps()) == 0
    assert "learner: 1 to 2 ranks; it finishes its step, keeps a checkpoint and starts again" in stand.said
    assert "learner starts with 2 rank(s)" in stand.said
    assert not any("ended with" in line for line in stand.said), stand.said


def test_one_that_does_not_leave_is_killed_and_starts_at_the_size_that_is_wanted_by_then(tmp_path: Path) -> None:
    stand = Stand(tmp_path, script=DEAF)

    def steps() -> Iterator[Step]:
        yield stand.runs_with(1)
        stand.supervisor.scale("learner", 2)
        yield lambda: stand.supervisor.replicas["learner"] == Replicas(running=0, retiring=1)
        stand.supervisor.scale("learner", 3)
        yield stand.runs_with(3)

    assert stand.play(steps()) == 0
    assert "learner-0 ended with signal 9; starting again in 0.05 s" in stand.said
    assert "learner starts with 3 rank(s)" in stand.said


def test_ranks_that_die_take_the_size_that_is_wanted_by_then(tmp_path: Path) -> None:
    stand = Stand(tmp_path, script=DEAF)

    def steps() -> Iterator[Step]:
        yield stand.runs_with(1)
        os.kill(stand.supervisor.pids["learner-0"][0], signal.SIGKILL)
        stand.supervisor.scale("learner", 2)
        yield stand.runs_with(2)
        assert stand.num_starts() == [2, 1, 0]

    assert stand.play(steps()) == 0


def test_a_learner_that_came_to_its_end_meanwhile_ends_the_run(tmp_path: Path) -> None:
    stand = Stand(tmp_path, complete=True)

    def steps() -> Iterator[Step]:
        yield stand.runs_with(1)
        stand.supervisor.scale("learner", 2)
        yield lambda: False

    assert stand.play(steps()) == 0
    assert stand.num_starts() == [1, 0, 0]


@pytest.mark.parametrize("size", [0, 4])
def test_a_number_of_ranks_there_cannot_be_is_an_error(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match=f"'learner' has 3 programs, asked for are {size}"):
        Stand(tmp_path).supervisor.scale("learner", size)
