"""Learning in an environment in one process, on a small scale: with advantages of steps and of trajectories."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from ops.bench.acting import Arena, Curve
from ops.run_file import RunFile, load_run_file
from schemas.errors import SettingsError


def small(*changes: str) -> RunFile:
    """The demo `guess` with two numbers to choose from, in small steps."""
    overrides = ["run.groups_per_step=8", "run.group_size=8", "learner.cloning.num_steps=30", *changes]
    return load_run_file(Path(str(files("ops") / "demo_guess.toml")), overrides=overrides)


def test_step_advantages_raise_the_reward_in_a_real_environment(tmp_path: Path) -> None:
    two = ["environment.options.high=1", "prompts.source.config.high=1", "learner.cloning.source.config.high=1"]
    arena = Arena(small(*two, "learner.optimizer.learning_rate=3e-3"), folder=tmp_path)
    curve = arena.learn("step_grpo", num_steps=12)
    start, end = curve.ends()
    assert end > start + 0.1, curve.rewards
    assert arena.learn("grpo", num_steps=1).rewards == curve.rewards[:1], "the same draws to begin with"


def test_ends_are_the_first_and_the_last_fifth() -> None:
    assert Curve(algorithm="grpo", rewards=tuple(map(float, range(10)))).ends() == (0.5, 8.5)
    assert Curve(algorithm="grpo", rewards=(1.0, 3.0)).ends() == (1.0, 3.0)


def test_without_an_environment_there_is_nothing_to_learn_in(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nothing to act in"):
        Arena(load_run_file(Path(str(files("ops") / "demo.toml"))), folder=tmp_path)
