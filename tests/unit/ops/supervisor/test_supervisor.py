"""The supervisor over real processes: small scripts in the place of stages."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ops.supervisor.processes import Program
from ops.supervisor.restarts import GiveUp, Restart
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.supervisor import Supervisor
from ops.supervisor.units import Exit, Unit
from pipeline.exit_codes import ExitCode
from pipeline.stage import StopSignal
from topics.clock import Deadline, SystemClock

# Stays until SIGTERM, which it notes in the file that is its argument.
STAYS = """
import pathlib, signal, sys, threading
end = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: end.set())
path = pathlib.Path(sys.argv[1])
path.write_text("ready")
while not end.wait(0.05):
    pass
path.write_text("stopped")
"""
DEAF = STAYS.replace("lambda *_: end.set()", "signal.SIG_IGN")
# Fails as often as its second argument says, then exits with the third.
FAILS = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
num = int(path.read_text()) if path.exists() else 0
path.write_text(str(num + 1))
sys.exit(int(sys.argv[3]) if num >= int(sys.argv[2]) else 1)
"""


# Ends with the code in its second argument once every file named after it says `ready` (first argument: its own).
FOLLOWS = """
import pathlib, sys, time
own, code, *others = sys.argv[1:]
paths = [pathlib.Path(other) for other in others]
while not all(path.exists() and path.read_text() == "ready" for path in paths):
    time.sleep(0.02)
sys.exit(int(code))
"""


@dataclass
class Ends:
    """The end of a run as a test wants it."""

    complete: list[bool] = field(default_factory=lambda: [True])
    drained: bool = True
    grace_s: float = 60.0

    def is_complete(self) -> bool:
        return self.complete.pop(0) if len(self.complete) > 1 else self.complete[0]

    def is_drained(self) -> bool:
        return self.drained


@dataclass
class World:
    """Scripts to supervise, and what was said."""

    folder: Path
    programs: list[Program] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    exits: list[tuple[str, int]] = field(default_factory=list)  # stage and pid
    stop: StopSignal = field(default_factory=StopSignal)
    ends: Ends = field(default_factory=Ends)

    def add(self, stage: str, script: str, *arguments: object, name: str = "", unit: str = "") -> Path:
        """A program; gives the file its script writes."""
        called = name or stage
        path = self.folder / f"{called}.state"
        self.programs.append(
            Program(
                name=called,
                stage=stage,
                arguments=(str(path), *map(str, arguments)),
                log_file=self.folder / "logs" / f"{called}.log",
                command=(sys.executable, "-c", script),
                unit=unit,
            )
        )
        return path

    def supervisor(self, **settings: float) -> Supervisor:
        values = {"restart_backoff_s": 0.05, "max_restarts": 3, "drain_s": 1.0} | settings
        return Supervisor(
            self.programs,
            SupervisorSettings.model_validate(values),
            clock=SystemClock(),
            stop=self.stop,
            ends=self.ends,
            on_event=self.said.append,
            on_exit=lambda stage, pid: self.exits.append((stage, pid)),
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def none_left(supervisor: Supervisor) -> bool:
    return not any(alive(pid) for pids in supervisor.pids.values() for pid in pids)


def stop_when(world: World, *files: Path) -> threading.Thread:
    """Ask for a stop once all files say `ready`."""

    def wait() -> None:
        deadline = Deadline.after(60)
        while not all(path.exists() and path.read_text() == "ready" for path in files) and not deadline.expired:
            SystemClock().wait(0.02)
        world.stop.request("test")

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_stage_that_dies_is_started_again_and_the_learners_end_ends_the_run(world: World) -> None:
    prompts = world.add("prompts", STAYS)
    world.add("learner", FAILS, 2, 0)
    supervisor = world.supervisor()
    assert supervisor.run() == 0
    assert len(supervisor.pids["learner"]) == 3
    assert world.exits == [(stage, pid) for stage in ("learner", "prompts") for pid in supervisor.pids[stage]]
    assert [line for line in world.said if "starting again in 0.05 s" in line]
    assert [line for line in world.said if "starting again in 0.1 s" in line]
    assert prompts.read_text() in ("stopped", "ready")  # it may not have come up so soon
    assert none_left(supervisor)


def test_a_learner_that_was_stopped_before_the_run_was_complete_is_started_again(world: World) -> None:
    world.add("learner", FAILS, 0, 0)
    world.ends = Ends(complete=[False, True])
    supervisor = world.supervisor()
    assert supervisor.run() == 0
    assert len(supervisor.pids["learner"]) == 2


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.REFUSED, ExitCode.FENCED, ExitCode.NO_PROGRESS])
def test_a_futile_exit_ends_the_run_with_its_code(world: World, code: ExitCode) -> None:
    world.add("rollout", STAYS)
    world.add("learner", FAILS, 0, int(code))
    supervisor = world.supervisor()
    assert supervisor.run() == code
    assert len(supervisor.pids["learner"]) == 1
    assert code.name.lower() in "".join(world.said)
    assert none_left(supervisor)


def test_a_stage_that_never_comes_up_ends_the_run_after_its_restarts(world: World) -> None:
    world.add("reward", FAILS, 99, 0)
    world.add("learner", STAYS)
    supervisor = world.supervisor()
    assert supervisor.run() == ExitCode.ERROR
    assert len(supervisor.pids["reward"]) == 4
    assert none_left(supervisor)


def test_a_stop_from_outside_stops_every_process_in_order_and_gives_0(world: World) -> None:
    files = [world.add(stage, STAYS) for stage in ("peer", "learner", "scheduler", "prompts", "rollout", "reward")]
    supervisor = world.supervisor()
    thread = stop_when(world, *files)
    assert supervisor.run() == 0
    thread.join()
    assert [path.read_text() for path in files] == ["stopped"] * len(files)
    order = sorted(files, key=lambda path: path.stat().st_mtime_ns)
    assert {path.stem for path in order[:2]} == {"prompts", "rollout"}
    assert [path.stem for path in order[2:4]] == ["reward", "learner"]
    assert none_left(supervisor)


def test_a_process_that_does_not_stop_is_killed_when_the_grace_is_over(world: World) -> None:
    """Case 45."""
    deaf = world.add("rollout", DEAF)
    world.ends = Ends(grace_s=0.5)
    supervisor = world.supervisor()
    thread = stop_when(world, deaf)
    assert supervisor.run() == 0
    thread.join()
    assert none_left(supervisor)
    assert "rollout stopped with code -9" in "".join(world.said)


@dataclass
class EndsAfter(Ends):
    """Drained once a process of the supervisor has ended, which nobody has looked at yet."""

    supervisor: Supervisor | None = None

    def is_drained(self) -> bool:
        assert self.supervisor is not None
        (pid,) = self.supervisor.pids["scheduler"]
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_a_scheduler_that_ends_by_itself_after_the_learner_is_told_with_its_reason(world: World) -> None:
    prompts = world.add("prompts", STAYS)
    wait = "while not path.exists() or path.read_text() != 'stopped': time.sleep(0.02)"
    fail = "print('error: the broker did not answer', flush=True)\nsys.exit(1)"
    world.add("scheduler", f"import pathlib, sys, time\npath = pathlib.Path({str(prompts)!r})\n{wait}\n{fail}")
    world.add("learner", FOLLOWS, 0, prompts)
    ends = EndsAfter()
    world.ends = ends
    ends.supervisor = world.supervisor(drain_s=60.0)
    assert ends.supervisor.run() == 0
    said = "".join(world.said)
    assert "scheduler ended with exit code 1: the broker did not answer; not started again" in said
    assert "stopped with code" not in said


def test_rewards_that_do_not_finish_are_stopped_when_the_time_for_it_is_over(world: World) -> None:
    reward = world.add("reward", STAYS)
    learner = world.folder / "learner.state"
    world.add("learner", f"import pathlib\nwhile not pathlib.Path({str(reward)!r}).exists(): pass")
    world.ends = Ends(drained=False)
    supervisor = world.supervisor(drain_s=0.3)
    assert supervisor.run() == 0
    assert "rewards or evaluations did not finish within 0.3 s" in "".join(world.said)
    assert reward.read_text() == "stopped"
    assert not learner.exists()
    assert none_left(supervisor)


def test_an_error_of_the_supervisor_itself_leaves_no_process_behind(world: World) -> None:
    world.add("rollout", STAYS)
    world.add("learner", STAYS)
    supervisor = Supervisor(
        world.programs,
        SupervisorSettings(),
        clock=SystemClock(),
        stop=world.stop,
        ends=world.ends,
        on_event=world.said.append,
        each_turn=lambda: (_ for _ in ()).throw(RuntimeError("of the test")),
    )
    with pytest.raises(RuntimeError, match="of the test"):
        supervisor.run()
    assert none_left(supervisor)


def test_ranks_end_and_start_together_and_one_that_stands_still_is_killed(world: World) -> None:
    """Rank 1 ends when rank 0 is up; rank 0 does not hear of it, as it ignores all but SIGKILL."""
    deaf = world.add("learner", DEAF, name="learner-0", unit="learner")
    world.add("learner", FOLLOWS, 1, deaf, name="learner-1", unit="learner")
    supervisor = world.supervisor(unit_grace_s=0.3, max_restarts=1)
    assert supervisor.run() == ExitCode.ERROR
    assert [len(supervisor.pids[name]) for name in ("learner-0", "learner-1")] == [2, 2]
    said = "\n".join(world.said)
    assert "learner-1 ended with exit code 1; all of learner end with it" in said
    assert "learner-0 ended with signal 9" in said
    assert "learner-0, learner-1 have ended; starting all of them again in 0.05 s" in said
    assert "learner-1 ended the run: 1 restarts in a row" in said
    assert none_left(supervisor)


def test_the_exit_of_a_rank_that_a_restart_cannot_mend_counts_before_those_of_the_others(world: World) -> None:
    world.add("learner", FAILS, 99, 0, name="learner-1", unit="learner")
    world.add("learner", FOLLOWS, int(ExitCode.FENCED), name="learner-0", unit="learner")
    world.add("rollout", STAYS)
    supervisor = world.supervisor()
    assert supervisor.run() == ExitCode.FENCED
    assert [len(supervisor.pids[name]) for name in ("learner-0", "learner-1")] == [1, 1]
    assert none_left(supervisor)


def test_one_rank_that_ends_a_complete_run_ends_it(world: World) -> None:
    stays = world.add("learner", STAYS, name="learner-1", unit="learner")
    world.add("learner", FOLLOWS, 0, stays, name="learner-0", unit="learner")
    supervisor = world.supervisor()
    assert supervisor.run() == 0
    assert stays.read_text() == "stopped"


def test_a_unit_decides_once_by_the_exit_that_says_most() -> None:
    unit = Unit(SupervisorSettings(unit_grace_s=3.0, restart_backoff_s=1.0))
    unit.ended(Exit(name="b", code=1, lived_s=5.0), now_s=10.0)
    unit.ended(Exit(name="a", code=-9, lived_s=5.0), now_s=12.0)
    assert (unit.kill_at_s, len(unit.exits)) == (13.0, 2)
    assert unit.decide() == (Exit(name="b", code=1, lived_s=5.0), Restart(after_s=1.0))
    assert (unit.kill_at_s, unit.exits) == (None, [])
    unit.ended(Exit(name="a", code=1, lived_s=5.0), now_s=20.0)
    unit.ended(Exit(name="b", code=int(ExitCode.DIVERGED), lived_s=5.0), now_s=20.0)
    why, decision = unit.decide()
    assert why.name == "b"
    assert isinstance(decision, GiveUp)
    assert decision.code == ExitCode.DIVERGED


# Says what it is told to, in each of two lives, and fails once.
SAYS = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
num = int(path.read_text()) if path.exists() else 0
path.write_text(str(num + 1))
print(sys.argv[2 + num], flush=True)
sys.exit(1 if num < len(sys.argv) - 3 else 0)
"""


def test_a_restart_says_what_the_process_said_last_in_that_life(world: World) -> None:
    world.add("learner", SAYS, "error: no room\nhint: make some", "a line before\nthe last one", "done")
    assert world.supervisor().run() == 0
    assert "learner ended with exit code 1: no room; starting again in 0.05 s" in world.said
    assert "learner ended with exit code 1: the last one; starting again in 0.1 s" in world.said
