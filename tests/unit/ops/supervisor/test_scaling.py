"""More and fewer programs of a kind: what is decided, and the same with real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.supervisor.executor import Replicas
from ops.supervisor.processes import Program
from ops.supervisor.scaling import Change, Retirement, Standing, choose
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.supervisor import Supervisor
from pipeline.stage import StopSignal
from tests.unit.ops.supervisor.test_supervisor import Ends, none_left
from topics.clock import Deadline, SystemClock

# Says `ready`; at SIGUSR2 `retiring`, and ends with 0 once its second argument, a file, is there.
LEAVES = """
import pathlib, signal, sys, threading
own, leave = map(pathlib.Path, sys.argv[1:3])
end, stop = threading.Event(), threading.Event()
signal.signal(signal.SIGUSR2, lambda *_: (own.write_text("retiring"), end.set()))
signal.signal(signal.SIGTERM, lambda *_: stop.set())
own.write_text("ready")
while not stop.wait(0.02):
    if end.is_set() and leave.exists():
        sys.exit(0)
own.write_text("stopped")
"""
STUBBORN = LEAVES.replace("lambda *_: stop.set()", "signal.SIG_IGN")  # hears of nothing but SIGUSR2 and SIGKILL
LIMIT_S = 60.0


@pytest.mark.parametrize(
    ("standings", "replicas", "change"),
    [
        ("wff", 3, Change(start=(1, 2))),
        ("wff", 1, Change()),
        ("www", 1, Change(retire=(2, 1))),
        ("wrr", 3, Change()),
        ("wrf", 2, Change(start=(2,))),
        ("wfw", 2, Change()),
        ("fww", 1, Change(retire=(2,))),
        ("ww", 0, Change(retire=(1, 0))),
    ],
)
def test_what_is_chosen(standings: str, replicas: int, change: Change) -> None:
    named: dict[str, Standing] = {"f": "free", "w": "working", "r": "retiring"}
    assert choose([named[each] for each in standings], replicas=replicas) == change


def test_one_that_retires_is_stopped_and_then_killed_each_once() -> None:
    retirement = Retirement(now_s=10.0, retire_s=60.0, grace_s=5.0)
    times = (10.0, 69.9, 70.0, 71.0, 75.0, 90.0)
    assert [retirement.due(now_s=now_s) for now_s in times] == [None, None, "stop", None, "kill", None]


class Stand:
    """A supervisor of three rollouts, two of them spare, in a script of a test: `steps` yields what it waits for."""

    def __init__(self, folder: Path, *, script: str = LEAVES, grace_s: float = 5.0, retire_s: float = 60.0) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.stop = StopSignal()
        self.leave = folder / "leave"
        programs = [
            Program(
                name=f"rollout-{number}",
                stage="rollout",
                arguments=(str(self.state(number)), str(self.leave)),
                log_file=folder / f"{number}.log",
                command=(sys.executable, "-c", script),
                target="rollout",
                spare=number > 0,
            )
            for number in range(3)
        ]
        self.supervisor = Supervisor(
            programs,
            SupervisorSettings(restart_backoff_s=0.05, retire_s=retire_s),
            clock=SystemClock(),
            stop=self.stop,
            ends=Ends(grace_s=grace_s),
            on_event=self.said.append,
            each_turn=self._turn,
        )
        self._steps: Iterator[Callable[[], bool]] = iter(())
        self._wanted: Callable[[], bool] = lambda: True
        self._deadline = Deadline.after(LIMIT_S)

    def state(self, number: int) -> Path:
        return self.folder / f"{number}.state"

    def says(self, number: int, word: str) -> Callable[[], bool]:
        return lambda: self.state(number).exists() and self.state(number).read_text() == word

    def ready(self, *numbers: int) -> Callable[[], bool]:
        return lambda: all(self.says(number, "ready")() for number in numbers)

    def are(self, running: int, retiring: int) -> Callable[[], bool]:
        return lambda: self.supervisor.replicas == {"rollout": Replicas(running=running, retiring=retiring)}

    def num_started(self) -> list[int]:
        return [len(pids) for pids in self.supervisor.pids.values()]

    def play(self, steps: Iterator[Callable[[], bool]]) -> None:
        """Run the supervisor; go on with the steps each time that what they wait for has come about."""
        self._steps = steps
        assert self.supervisor.run() == 0
        assert next(self._steps, None) is None, "it did not come to its end"
        assert none_left(self.supervisor)

    def _turn(self) -> None:
        if not self._wanted():
            self._deadline.check(f"the next step; said was {self.said}, replicas are {self.supervisor.replicas}")
            return
        wanted = next(self._steps, None)
        if wanted is None:
            self.stop.request("test")
        else:
            self._wanted = wanted


def test_more_start_and_the_highest_retire_when_they_are_through(tmp_path: Path) -> None:
    stand = Stand(tmp_path)

    def steps() -> Iterator[Callable[[], bool]]:
        yield stand.ready(0)
        assert stand.num_started() == [1, 0, 0]
        stand.supervisor.scale("rollout", 3)
        stand.supervisor.scale("rollout", 3)
        yield stand.ready(0, 1, 2)
        assert stand.are(running=3, retiring=0)()
        stand.supervisor.scale("rollout", 1)
        yield stand.says(1, "retiring")
        yield stand.says(2, "retiring")
        assert stand.are(running=1, retiring=2)()
        stand.leave.touch()
        yield stand.are(running=1, retiring=0)
        assert stand.num_started() == [1, 1, 1], "what has retired is not started again"
        assert stand.ready(0)()

    stand.play(steps())
    assert {"rollout-1 has retired", "rollout-2 has retired"} <= set(stand.said)


def test_a_place_that_is_still_being_left_is_filled_when_it_is_free(tmp_path: Path) -> None:
    stand = Stand(tmp_path)

    def steps() -> Iterator[Callable[[], bool]]:
        yield stand.ready(0)
        stand.supervisor.scale("rollout", 2)
        yield stand.ready(0, 1)
        stand.supervisor.scale("rollout", 1)
        yield stand.says(1, "retiring")
        stand.supervisor.scale("rollout", 2)
        yield stand.ready(0, 2)
        assert stand.says(1, "retiring")(), "its place was not taken"
        assert stand.are(running=2, retiring=1)()
        stand.supervisor.scale("rollout", 3)
        yield stand.are(running=2, retiring=1)
        assert stand.num_started() == [1, 1, 1]
        stand.leave.touch()
        yield stand.are(running=3, retiring=0)
        assert stand.num_started() == [1, 2, 1]

    stand.play(steps())


def test_one_that_dies_by_itself_is_started_again_also_after_it_was_added(tmp_path: Path) -> None:
    stand = Stand(tmp_path)

    def steps() -> Iterator[Callable[[], bool]]:
        yield stand.ready(0)
        stand.supervisor.scale("rollout", 2)
        yield stand.ready(1)
        process = stand.supervisor.replace("rollout-1")
        assert process is not None
        process.kill()
        process.wait()
        yield lambda: stand.num_started() == [1, 2, 0]
        assert stand.are(running=2, retiring=0)()

    stand.play(steps())


@pytest.mark.parametrize(("script", "last"), [(LEAVES, "stopping it"), (STUBBORN, "killing it")])
def test_one_that_is_not_through_in_time_is_stopped_and_one_that_does_not_stop_is_killed(
    tmp_path: Path, script: str, last: str
) -> None:
    stand = Stand(tmp_path, script=script, grace_s=0.3 if script == STUBBORN else 60.0, retire_s=0.2)

    def steps() -> Iterator[Callable[[], bool]]:
        yield stand.ready(0)
        stand.supervisor.scale("rollout", 2)
        yield stand.ready(1)
        stand.supervisor.scale("rollout", 1)
        yield stand.are(running=1, retiring=0)
        assert stand.num_started() == [1, 1, 0]

    stand.play(steps())
    about = [line for line in stand.said if line.startswith("rollout-1")]
    assert about[2] == "rollout-1 was retired and is not through after 0.2 s; stopping it"
    assert any(line.endswith(last) for line in about)
    if last == "killing it":
        assert "rollout-1 was retired and ended with signal 9" in about[-1]
    else:
        assert about[-1] == "rollout-1 has retired"


def test_a_number_there_are_no_programs_for_is_an_error(tmp_path: Path) -> None:
    supervisor = Stand(tmp_path).supervisor
    with pytest.raises(ValueError, match="'rollout' has 3 programs, asked for are 4"):
        supervisor.scale("rollout", 4)
    with pytest.raises(ValueError, match="'learner' has 0 programs"):
        supervisor.scale("learner", 1)
