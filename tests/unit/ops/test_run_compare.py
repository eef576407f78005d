"""What launches leave, and runs beside each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.runs import runs
from ops.replay.sources import RunNotFound
from ops.run_compare import RunCard, compare, read_card, text, to_json
from ops.run_file import RunFile, parse_run_file, save_run_file
from ops.run_record import RECORD_FILE, git_state, read_records, record_begin, record_end
from tests.unit.ops.little_run import little_run
from topics.catalog import PROMPTS
from topics.log import WriterSettings
from topics.memory import MemoryLog


def run_file(folder: Path, name: str, **learner: object) -> RunFile:
    return parse_run_file(
        {
            "run": {"name": name, "dir": str(folder), "seed": 3},
            "model": {"path": "model"},
            "prompts": {"source": {"files": ["tasks.jsonl"], "seed": 5}},
            "rewards": {"sum": {"plugin": "number_match"}},
            "learner": learner,  # type: ignore[dict-item]
        },
        origin="test",
    )


def launched(folder: Path, name: str, **learner: object) -> RunFile:
    """A run that was launched and ended, with one prompt on its topic."""
    settings = run_file(folder, name, **learner)
    log = MemoryLog(run=name, data_partitions=2)
    log.admin().ensure_topics()
    settings.run.folder.mkdir(parents=True)
    save_run_file(settings, settings.run.folder / "settings.json")
    record_begin(log, settings, stages=["learner"])
    writer = log.writer(WriterSettings())
    record = little_run().records[PROMPTS.name, 0][0]
    writer.write(PROMPTS, record, partition=0)
    record_end(log, settings, code=0)
    return settings


def none(_: str) -> None:
    return None


def card(name: str, folder: Path) -> RunCard:
    return read_card(name, runs_dir=folder, from_topics=none)


def test_a_launch_says_what_it_was_made_of(tmp_path: Path) -> None:
    settings = launched(tmp_path, "one")
    began, ended = read_records(settings.run.folder)
    assert (began["event"], ended["event"], ended["code"]) == ("began", "ended", 0)
    assert began["seeds"] == {"run.seed": 3, "prompts.source.seed": 5}, "topology.seed is a host"
    assert began["settings"] == settings.model_dump(mode="json")
    versions = began["versions"]
    assert isinstance(versions, dict)
    assert versions["numpy"]
    offsets = ended["offsets"]
    assert isinstance(offsets, dict)
    assert offsets["prompts"] == {"0": [0, 1], "1": [0, 0]}
    with (settings.run.folder / RECORD_FILE).open("ab") as file:
        file.write(b'{"event": "beg')
    assert len(read_records(settings.run.folder)) == 2, "a torn line is left out"


def test_git_is_named_with_its_changes_and_missing_where_there_is_none(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    for command in ("init -q .", "config user.email a@b", "config user.name a", "add f", "commit -qm one"):
        (tmp_path / "f").touch()
        assert os.system(f"cd {tmp_path} && git {command}") == 0
    commit = git_state(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "f").write_text("x")
    assert git_state(tmp_path) == f"{commit}+changes"


def test_only_what_differs_is_listed_and_figures_always(tmp_path: Path) -> None:
    for name, rate, reward in (("a", 1e-4, 0.5), ("b", 2e-4, 0.75)):
        folder = launched(tmp_path, name, optimizer={"learning_rate": rate}).run.folder
        summary = {"steps": 3, "reward_last": reward, "dropped": {"stale": 2}, "failed": {}}
        (folder / "summary.json").write_text(json.dumps(summary))
    found = compare([card("a", tmp_path), card("b", tmp_path)])
    assert found.settings == {"learner.optimizer.learning_rate": (1e-4, 2e-4)}
    assert found.versions == {}
    assert found.figures == {"steps": (3, 3), "reward_last": (0.5, 0.75), "dropped: stale": (2, 2)}
    assert found.offsets["prompts"] == (1, 1)
    assert found.notes == ()
    assert json.loads(to_json(found))["figures"]["reward_last"] == {"a": 0.5, "b": 0.75}
    line = next(line for line in text(found).splitlines() if line.startswith("learner.optimizer"))
    assert line.split() == ["learner.optimizer.learning_rate", "0.0001", "0.0002"]


def test_an_old_summary_is_told_and_a_name_that_is_nothing_refused(tmp_path: Path) -> None:
    folder = launched(tmp_path, "a").run.folder
    assert card("a", tmp_path).notes == (
        "a has neither summary.json nor topics on this broker: its figures are not known",
    )
    (folder / "summary.json").write_text('{"steps": 3}')
    os.utime(folder / "summary.json", (1, 1))
    old = card("a", tmp_path)
    assert (old.figures, old.notes) == ({"steps": 3}, ("a: its summary.json is older than its last launch",))
    with pytest.raises(RunNotFound, match="no saved settings"):
        card("c", tmp_path)


def test_a_repetition_stands_beside_its_run(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    report = {"settings": {"1": {"optimizer": {"learning_rate": 0.5}}}, "last_step": 2, "same": None}
    (again / "report.json").write_text(json.dumps(report))
    (again / "steps.jsonl").write_text('{"step": 0}\n{"step": 2, "loss": 0.25}\n')
    launched(tmp_path, "a")
    found = compare([card("a", tmp_path), card(str(again), tmp_path)])
    assert found.settings["learner.optimizer.learning_rate"] == (1e-6, 0.5)
    assert found.figures["loss"] == (None, 0.25)


def test_the_command_prints_json_without_a_broker(tmp_path: Path) -> None:
    launched(tmp_path, "a")
    arguments = ["compare", "a", "--json", "--dir", str(tmp_path), "--state-dir", str(tmp_path / "none")]
    done = CliRunner().invoke(runs, arguments, env={"RLWEAVE_KAFKA": ""})
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["runs"] == ["a"]
