"""Phases of a run: what each is launched with, what ends it, and where a run goes on that was killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

import ops.launch
from ops.made_with import check_made_with
from ops.phase_book import PhaseBook, PhaseProgress
from ops.phase_settings import StopRule
from ops.phases import BASE_FILE, InPhase, Launched, PhaseWatch, run_phases
from ops.run_file import RunFile, Toml, parse_run_file, save_run_file
from pipeline.stage import StopSignal
from schemas.errors import LogError, SettingsError
from schemas.records import LedgerSealed, StageEvent

CLONE: dict[str, object] = {"name": "clone", "until": {"steps": 0}}
SUMS: dict[str, object] = {
    "name": "sums",
    "until": {"steps": 50, "reward": 0.5, "reward_steps": 2},
    "settings": {"rewards": {"short": {"weight": 0.0}}},
}
SHORT: dict[str, object] = {
    "name": "short",
    "until": {"tokens": 100},
    "settings": {"learner": {"optimizer": {"learning_rate": 1e-4}}, "prompts": {"source": {"files": ["b.jsonl"]}}},
}


def run_file(folder: Path, *phases: dict[str, object]) -> RunFile:
    return parse_run_file(
        {
            "run": {"name": "r", "dir": str(folder), "max_steps": 90},
            "model": {"path": "model"},
            "prompts": {"source": {"files": ["a.jsonl"]}},
            "rewards": {"sum": {"plugin": "number_match"}, "short": {"plugin": "number_match"}},
            "phases": cast("list[Toml]", list(phases)),
        },
        origin="test",
    )


def stepped(step: int, *, reward: float = 0.0, tokens: int = 10) -> StageEvent:
    return StageEvent(
        run="r",
        stage="learner",
        instance="learner-a",
        kind="notice",
        name="step",
        seq=step,
        gauges={"step": float(step), "reward_mean": reward, "num_tokens": float(tokens)},
        monotonic_s=0.0,
        unix_ms=0,
    )


@dataclass
class Stages:
    """A run without processes: each launch trains to its last step, or until it is asked to stop."""

    reward: float = 0.0
    step: int = 0
    lineage: int = 0
    launches: list[RunFile] = field(default_factory=list)
    die_at: int | None = None  # step at which the whole run is killed
    user_stops_at: int | None = None
    seal: LedgerSealed | None = None

    def __call__(self, chosen: RunFile, phase: InPhase) -> Launched:
        stop, watch = phase.stop, phase.watch
        self.launches.append(chosen)
        self.lineage += 1
        self.seal = None
        while self.step < chosen.run.max_steps and not stop.requested:
            self.step += 1
            watch.take(stepped(self.step, reward=self.reward))
            watch.turn()
            if self.step == self.die_at:
                self.die_at = None
                raise KeyboardInterrupt
            if self.step == self.user_stops_at:
                os.kill(os.getpid(), signal.SIGTERM)
        if self.step >= chosen.run.max_steps:
            self.seal = LedgerSealed(
                run="r",
                lineage=self.lineage,
                step=self.step,
                seq=0,
                num_groups=4 * self.step,
                reason=f"max_steps {chosen.run.max_steps} reached",
                sealed_unix_ms=0,
            )
        return Launched(code=0, seal=self.seal)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(settings: RunFile, stages: Stages) -> list[str]:
    said: list[str] = []
    assert run_phases(settings, launch_one=stages, say=said.append) == 0
    return said


def book(folder: Path) -> list[tuple[str, int, int | None, str]]:
    values = json.loads((folder / "r" / "phases.json").read_text())
    return [(each["name"], each["first_step"], each["last_step"], each["reason"]) for each in values]


def test_phases_follow_one_another_each_with_its_settings_and_its_end(tmp_path: Path) -> None:
    stages = Stages(reward=0.6)
    said = run(run_file(tmp_path, CLONE, SUMS, SHORT), stages)
    assert book(tmp_path) == [
        ("clone", 0, 0, "max_steps 0 reached"),
        ("sums", 0, 2, "reward 0.600 over 2 steps reached 0.5"),
        ("short", 2, 12, "100 tokens were trained on, of 100"),
    ]
    assert [each.run.max_steps for each in stages.launches] == [0, 50, 2, 90, 12], "a rule's end is sealed by a launch"
    assert [each.rewards["short"].weight for each in stages.launches] == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert [each.learner.optimizer.learning_rate for each in stages.launches[-2:]] == [1e-4, 1e-4]
    assert [each.learner.first_group for each in stages.launches] == [0, 0, 0, 8, 8], "its own groups are reopened"
    assert all(each.phases == () for each in stages.launches)
    assert "phase sums: over at step 2: reward 0.600 over 2 steps reached 0.5" in said
    again = Stages(step=12)
    assert run(run_file(tmp_path, CLONE, SUMS, SHORT), again) == [
        "run r is complete: all of its 3 phases are over; nothing was started"
    ]
    assert again.launches == [], "a run whose phases are over starts nothing"


def test_a_run_that_was_killed_goes_on_in_its_phase_and_counts_on(tmp_path: Path) -> None:
    settings = run_file(tmp_path, SHORT)
    stages = Stages(die_at=7)
    with pytest.raises(KeyboardInterrupt):
        run_phases(settings, launch_one=stages, say=lambda _: None)
    saved = PhaseBook(tmp_path / "r", settings.phases)
    saved.progress[0].tokens = {str(step): 10 for step in range(1, 8)}
    saved.save()
    stages.step = 5  # the checkpoint it goes on from: steps 6 and 7 are made again
    run(settings, stages)
    assert book(tmp_path) == [("short", 0, 10, "100 tokens were trained on, of 100")]


def test_a_death_between_rule_and_seal_only_seals(tmp_path: Path) -> None:
    settings = run_file(tmp_path, SUMS)
    phases = PhaseBook(tmp_path / "r", settings.phases)
    assert phases.current is not None
    phases.progress[0].closing_at, phases.progress[0].reason = 4, "because"
    phases.save()
    stages = Stages(step=4, reward=1.0)
    run(settings, stages)
    assert book(tmp_path) == [("sums", 0, 4, "because")]
    assert [each.run.max_steps for each in stages.launches] == [4]


def test_a_person_who_stops_it_stops_all_phases(tmp_path: Path) -> None:
    stages = Stages(user_stops_at=3)
    run(run_file(tmp_path, SHORT, {**SUMS, "name": "later"}), stages)
    assert book(tmp_path) == [("short", 0, None, "")]
    assert len(stages.launches) == 1


def test_a_failed_launch_ends_the_run_with_its_code_and_the_phase_stays(tmp_path: Path) -> None:
    code = run_phases(run_file(tmp_path, SUMS), launch_one=lambda *_: Launched(code=6, seal=None), say=lambda _: None)
    assert code == 6
    assert book(tmp_path) == [("sums", 0, None, "")]


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        ((SUMS, SUMS), "more than once"),
        ((SUMS, CLONE), "only the first phase may clone"),
        (({**SUMS, "settings": {"learner": {"speed": 1}}},), "phase sums: 1 setting"),
        ((CLONE, {**SUMS, "settings": {"run": {"group_size": 2}}}), r"phase sums: run\.group_size"),
        (({**SUMS, "settings": {"run": {"name": "other"}}},), r"phase sums: run\.name"),
        (
            ({**SUMS, "settings": {"learner": {"cloning": {"num_steps": 3}}}},),
            r"phase sums: learner\.cloning\.num_steps",
        ),
        (({**SUMS, "settings": {"rewards": {"sum": {"weight": 0}, "short": {"weight": 0}}}},), "nothing to learn from"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_phase(
    tmp_path: Path, phases: tuple[dict[str, object], ...], why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        run(run_file(tmp_path, *phases), Stages())
    assert not (tmp_path / "r").exists()


def test_phases_that_were_begun_keep_their_places(tmp_path: Path) -> None:
    run(run_file(tmp_path, CLONE), Stages())
    with pytest.raises(SettingsError, match="begins with others"):
        run(run_file(tmp_path, SUMS), Stages())


def test_a_rule_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the phase would never end"):
        run_file(tmp_path, {"name": "a", "until": {}})


def test_time_is_added_up_over_starts(tmp_path: Path) -> None:
    settings = run_file(tmp_path, {"name": "a", "until": {"time_s": 10.0}})
    phases = PhaseBook(tmp_path / "r", settings.phases)
    progress, now, stop = PhaseProgress(name="a", time_s=6.0), [100.0], StopSignal()
    watch = PhaseWatch(phases, rule=StopRule(time_s=10.0), progress=progress, stop=stop, now_s=lambda: now[0])
    now[0] = 103.0
    watch.turn()
    assert not stop.requested
    now[0] = 104.0
    watch.turn()
    assert (stop.requested, watch.met) == (True, "10 s have passed, of 10")


def test_solved_groups_that_taught_nothing_count_for_the_reward(tmp_path: Path) -> None:
    progress = PhaseProgress(name="a")
    event = stepped(1, reward=0.5)
    progress.add(replace(event, gauges={**event.gauges, "reward_seen_mean": 0.9}), keep_rewards=1)
    assert progress.met(StopRule(reward=0.8, reward_steps=1)).startswith("reward 0.900")


def test_a_phase_may_have_other_prompts_and_a_plain_run_not(tmp_path: Path) -> None:
    first, other = run_file(tmp_path, SUMS), run_file(tmp_path)
    save_run_file(first, tmp_path / "r" / "settings.json")
    source = other.prompts.source.model_copy(update={"kind": "plugin", "files": (), "plugin": "a:b"})
    changed = other.model_copy(update={"prompts": other.prompts.model_copy(update={"source": source})})
    assert "prompts.source.kind ('jsonl' -> 'plugin')" in check_made_with(changed, in_phase=True)
    with pytest.raises(SettingsError, match=r"prompts\.source\.kind"):
        check_made_with(changed)


def test_a_run_is_not_over_because_nobody_knows_whether_its_phase_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages have ended in order, and the broker is away when the seal is looked for."""
    monkeypatch.setattr(ops.launch, "launch", lambda *_, **__: 0)
    away = {"kafka": {"bootstrap": "127.0.0.1:1"}, "redis": {"url": "none"}}
    values = run_file(tmp_path, CLONE).model_dump(mode="json") | away
    settings = parse_run_file(cast("dict[str, Toml]", values), origin="test")
    with pytest.raises(LogError):
        ops.launch.launch_all(settings, state_dir=tmp_path)
    assert book(tmp_path) == [("clone", 0, None, "")]


def test_a_full_disk_does_not_end_a_phase_and_is_said_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = run_file(tmp_path, {"name": "a", "until": {"tokens": 30}})
    stages = Stages()

    def fills_up(chosen: RunFile, phase: InPhase) -> Launched:
        (tmp_path / "r" / ".phases.json.tmp").mkdir()  # nothing can be written from here on
        return stages(chosen, phase)

    with pytest.raises(SettingsError, match=r"run\.dir: .*phases\.json cannot be written"):
        run_phases(settings, launch_one=fills_up, say=lambda _: None)
    assert stages.step == 3, "it went on to its end"
    assert "how far phase a is was not noted" in caplog.text


@pytest.mark.parametrize("content", ["[{", "{}", '[{"name": "a", "first_step": "1"}]', '[{"first_step": 1}]'])
def test_a_book_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "phases.json").write_text(content)
    with pytest.raises(SettingsError, match=r"phases\.json cannot be read"):
        run(run_file(tmp_path, SUMS), Stages())


def test_a_book_of_a_later_release_is_read(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "phases.json").write_text('[{"name": "sums", "first_step": 3, "colour": "red"}]')
    assert PhaseBook(tmp_path / "r", run_file(tmp_path, SUMS).phases).progress[0].first_step == 3


def test_settings_that_the_run_was_not_made_with_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """`runs resume` goes on with what is kept here."""
    made = run_file(tmp_path, SUMS)
    folder = tmp_path / "r"
    save_run_file(made, folder / "settings.json")
    save_run_file(made, folder / BASE_FILE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = made.model_copy(update={"run": made.run.model_copy(update={"group_size": made.run.group_size + 1})})
    with pytest.raises(SettingsError, match=r"run\.group_size"):
        run(other, Stages())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
