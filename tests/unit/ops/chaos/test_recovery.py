"""How long a run takes to get over a fault, and what is said of one that does not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ops.chaos.errors import RunEnded
from ops.chaos.recovery import absent_programs, busy_scale, wait_recovered
from ops.chaos.settings import Limits
from tests.unit.ops.chaos.chaos_support import heard, stepped, wait_for, world_of

FOUR = Limits(recovery_s=60.0, proof_steps=4)


def test_recovery_ends_with_the_first_step_after_everybody_is_back(tmp_path: Path) -> None:
    with world_of(tmp_path, "learner", "prompts", limits=FOUR) as world:
        began_s = time.monotonic()
        healed_s = began_s + 0.001
        for name in ("learner", "prompts"):
            heard(world, name, now_s=healed_s + 1)
        ahead_s = healed_s + 100  # after everybody was found to be back
        for step in range(1, 5):
            stepped(world, step, now_s=ahead_s + step)
        recovery = wait_recovered(world, began_s=began_s, healed_s=healed_s)
    assert recovery.hang == ""
    assert recovery.recovery_s == pytest.approx(101)
    assert recovery.stall_s == pytest.approx(101, abs=0.1)


def test_the_stall_is_the_longest_time_between_two_steps_fault_included(tmp_path: Path) -> None:
    with world_of(tmp_path, "learner", limits=FOUR) as world:
        now_s = time.monotonic()
        heard(world, "learner", now_s=now_s - 10)
        for step, at_s in enumerate((-58, -28, 41, 42, 43, 44), 1):
            stepped(world, step, now_s=now_s + at_s)
        recovery = wait_recovered(world, began_s=now_s - 60, healed_s=now_s - 20)
    assert recovery.recovery_s == pytest.approx(61)
    assert recovery.stall_s == pytest.approx(69)


def test_a_run_without_steps_is_a_hang_that_names_what_everybody_does(tmp_path: Path) -> None:
    with world_of(tmp_path, "learner", "prompts") as world:
        now_s = time.monotonic()
        heard(world, "learner", phase="waiting_for_data", now_s=now_s + 10)
        heard(world, "prompts", phase="starting", now_s=now_s + 10)
        stepped(world, 1, now_s=now_s + 10)
        recovery = wait_recovered(world, began_s=now_s, healed_s=now_s)
    assert recovery.hang.startswith("1 steps in ")
    assert "not back: prompts;" in recovery.hang
    assert "learner waiting_for_data" in recovery.hang


def test_a_program_is_absent_until_its_new_process_is_heard_and_past_its_start(tmp_path: Path) -> None:
    with world_of(tmp_path, "rollout-0") as world:
        assert absent_programs(world, since_s=0.0) == ["rollout-0"]
        heard(world, "rollout-0", phase="starting")
        assert absent_programs(world, since_s=0.0) == ["rollout-0"]
        heard(world, "rollout-0", phase="generating")
        assert absent_programs(world, since_s=0.0) == []
        assert absent_programs(world, since_s=time.monotonic() + 1) == ["rollout-0"]


def test_a_run_that_ends_by_itself_ends_the_wait(tmp_path: Path) -> None:
    with world_of(tmp_path, "learner", limits=FOUR) as world:
        world.crew.stop()
        wait_for(lambda: world.crew.ended is not None)
        with pytest.raises(RunEnded, match="ended by itself with code"):
            wait_recovered(world, began_s=time.monotonic(), healed_s=time.monotonic())


def test_limits_are_stretched_by_load_within_bounds() -> None:
    assert 1.0 <= busy_scale() <= 4.0
