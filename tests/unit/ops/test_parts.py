"""Parts of a run on several machines: which stages, and when a part without the learner ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.main import cli
from ops.named_checks import check_named
from ops.run_ends import PartEnd
from ops.run_file import load_run_file
from ops.supervisor.settings import SupervisorSettings
from pipeline.stage import StopSignal
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL
from topics.clock import ManualClock

TURN_S = 2.5  # more than between two looks


@dataclass
class Ends:
    """What the log says."""

    complete: bool = False
    drained: bool = False

    def is_complete(self) -> bool:
        return self.complete

    def is_drained(self) -> bool:
        return self.drained


@dataclass
class Part:
    """A part of a run, and a clock to turn it with."""

    stages: tuple[str, ...]
    ends: Ends

    def __post_init__(self) -> None:
        self.clock, self.stop = ManualClock(), StopSignal()
        settings = SupervisorSettings(drain_s=30.0)
        self.end = PartEnd(self.ends, stages=self.stages, settings=settings, stop=self.stop, clock=self.clock)

    def turn(self, times: int = 1) -> bool:
        for _ in range(times):
            self.clock.wait(TURN_S)
            self.end.turn()
        return self.stop.requested


def test_a_part_without_the_learner_ends_when_the_run_is_complete() -> None:
    ends = Ends()
    part = Part(("rollout", "peer"), ends)
    assert not part.turn(5)
    ends.complete = True
    assert part.turn()
    assert part.end.is_reached


def test_a_part_with_rewards_scores_to_the_last_sample_first() -> None:
    ends = Ends(complete=True)
    part = Part(("reward",), ends)
    assert not part.turn(3)
    ends.drained = True
    assert part.turn()


def test_rewards_that_do_not_get_through_are_not_waited_for_for_ever() -> None:
    part = Part(("reward",), Ends(complete=True))
    assert not part.turn(11)
    assert part.turn(3)


def test_the_part_of_the_learner_ends_by_the_learner() -> None:
    part = Part(("learner", "peer"), Ends(complete=True, drained=True))
    assert not part.turn(5)


def test_a_machine_needs_only_what_its_stages_need(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    run_file = load_run_file(path, overrides=["model.path=/nowhere", "prompts.source.files=['none.jsonl']"])
    check_named(run_file, stages=("peer", "reward", "scheduler"))
    with pytest.raises(SettingsError, match=r"model\.path"):
        check_named(run_file, stages=("rollout",))
    with pytest.raises(SettingsError, match=r"none\.jsonl"):
        check_named(run_file, stages=("prompts",))


def test_a_stage_that_is_none_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(cli, ["up", "--config", str(tmp_path / "run.toml"), "--only", "learner,rollouts"])
    assert said.exit_code == 2
    assert "'rollouts' is no stage; there are prompts, rollout" in said.output


def test_a_token_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    first = CliRunner().invoke(cli, ["token", str(file)])
    content = file.read_text()
    second = CliRunner().invoke(cli, ["token", str(file)])
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "new token" in first.output
    assert "left as it is" in second.output
    assert file.read_text() == content
    assert content not in first.output + second.output
    assert file.stat().st_mode & 0o077 == 0
