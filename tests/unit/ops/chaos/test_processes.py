"""Faults of processes, done to real ones."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from ops.chaos.crew import wait_ended
from ops.chaos.errors import ChaosError
from ops.chaos.faults import KINDS, Fault, Layout, workers
from ops.chaos.faults.processes import Freeze, Kill, Replace
from ops.chaos.faults.workers import WorkerFreeze, WorkerKill
from ops.chaos.world import World
from tests.unit.ops.chaos.chaos_support import SCORES, heard, wait_for, world_of

LAYOUT = Layout(
    programs={"learner": "learner", "reward-shadow-0": "reward", "reward-sum-0": "reward", "reward-sum-1": "reward"},
    brokers=1,
    partitions=2,
)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pid_of(world: World, name: str) -> int:
    pid = world.crew.pid(name)
    assert pid is not None
    return pid


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    with world_of(tmp_path, "learner") as world:
        before = pid_of(world, "learner")
        Kill("learner").inject(world)
        wait_for(lambda: world.crew.pid("learner") not in (None, before))
        assert not Path(f"/proc/{before}").exists()


def test_a_frozen_process_goes_on_as_the_same_one(tmp_path: Path) -> None:
    with world_of(tmp_path, "rollout-0") as world:
        pid, freeze = pid_of(world, "rollout-0"), Freeze("rollout-0", hold_s=1.0)
        freeze.inject(world)
        wait_for(lambda: state_of(pid) == "T")
        freeze.heal(world)
        wait_for(lambda: state_of(pid) != "T")
        assert world.crew.pid("rollout-0") == pid


def test_a_replaced_process_that_lives_on_is_a_hang_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.chaos.faults.processes._AWAKE_S", 0.2)
    with world_of(tmp_path, "prompts") as world:
        before, replace = pid_of(world, "prompts"), Replace(["prompts"], hold_s=0.0)
        replace.inject(world)
        wait_for(lambda: world.crew.pid("prompts") not in (None, before))
        assert [process.pid for process in world.left] == [before]
        heard(world, "prompts")
        replace.heal(world)
        assert len(world.hangs) == 1
        assert f"process {before} was replaced and lived on" in world.hangs[0]
        assert (world.left, Path(f"/proc/{before}").exists()) == ([], False)


def test_a_worker_of_a_reward_is_killed_and_its_consumer_is_not(tmp_path: Path) -> None:
    with world_of(tmp_path, "reward-sum-0", code=SCORES) as world:
        consumer = pid_of(world, "reward-sum-0")
        wait_for(lambda: world.crew.workers("reward-sum-0") != [])
        worker = world.crew.workers("reward-sum-0")[0]
        assert worker != consumer
        WorkerKill("reward-sum-0", choice=0.99).inject(world)
        wait_for(lambda: worker not in world.crew.workers("reward-sum-0"))
        assert world.crew.pid("reward-sum-0") in (consumer, None) or world.crew.workers("reward-sum-0") != [worker]


def test_a_worker_stands_still_and_goes_on(tmp_path: Path) -> None:
    with world_of(tmp_path, "reward-sum-0", code=SCORES) as world:
        freeze = WorkerFreeze("reward-sum-0", choice=0.0, hold_s=1.0)
        freeze.inject(world)
        worker = world.crew.workers("reward-sum-0")[0]
        wait_for(lambda: state_of(worker) == "T")
        freeze.heal(world)
        wait_for(lambda: state_of(worker) != "T")
        assert world.crew.workers("reward-sum-0") == [worker], "it is the same one"


def test_a_process_of_somebody_else_is_never_signalled(tmp_path: Path) -> None:
    with world_of(tmp_path, "reward-sum-0", code=SCORES) as world:
        wait_for(lambda: world.crew.workers("reward-sum-0") != [])
        own = pid_of(world, "reward-sum-0")
        assert not world.crew.send_worker("reward-sum-0", own, number=signal.SIGKILL)
        assert not world.crew.send_worker("reward-sum-0", 1, number=signal.SIGKILL)


def test_a_consumer_without_a_worker_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_THERE_S", 0.2)
    with world_of(tmp_path, "reward-sum-0") as world, pytest.raises(ChaosError, match="reward-sum-0 had no worker"):
        WorkerKill("reward-sum-0", choice=0.0).inject(world)


def test_only_consumers_that_have_workers_are_drawn() -> None:
    assert set(workers.KINDS) == {kind for kind in KINDS if kind.name.endswith("-worker")}
    faults: list[Fault] = [one.draw(Random(seed), LAYOUT) for one in workers.KINDS for seed in range(20)]
    assert {str(fault).split()[2] for fault in faults} == {"reward-sum-0", "reward-sum-1"}


def test_the_end_of_a_process_is_waited_for_up_to_a_limit(tmp_path: Path) -> None:
    with world_of(tmp_path, "learner") as world:
        process = world.crew.replace("learner")
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        assert wait_ended(process, limit_s=0.2) is None
        assert process.returncode == -signal.SIGKILL
