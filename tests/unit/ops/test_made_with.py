"""Settings a run was made with: what cannot change is refused by name, what may is told in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.main import cli
from ops.made_with import MODEL_FILE, SETTINGS_FILE, check_made_with, keep_model
from ops.run_file import RunFile, load_run_file, save_run_file
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL

CLONING = ["learner.cloning.num_steps=3", 'learner.cloning.source.files=["tasks.jsonl"]']
MADE = ["run.group_size=16", "run.max_steps=10", *CLONING]
FOLDER = Path("runs/little")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run that was made with `MADE`."""
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(MINIMAL)
    Path("tasks.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    make_model(Path("model"))
    made = run_file(*MADE, "kafka.bootstrap=127.0.0.1:1", "redis.url=redis://127.0.0.1:1")
    save_run_file(made, FOLDER / SETTINGS_FILE)
    keep_model(made)
    return tmp_path


def make_model(folder: Path, *, weights: bytes = b"weights", width: int = 8) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"width": width, "transformers_version": "1"}))
    (folder / "model.safetensors").write_bytes(weights)


def run_file(*overrides: str) -> RunFile:
    return load_run_file(Path("run.toml"), overrides=overrides)


def refusal(*overrides: str) -> str:
    before = {path: path.read_bytes() for path in FOLDER.iterdir()}
    with pytest.raises(SettingsError) as caught:
        check_made_with(run_file(*overrides))
    assert "nothing was started or written" in caught.value.message
    assert "another run.name" in caught.value.hint
    assert "rlweave runs delete little --files --dir runs" in caught.value.hint
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before
    return caught.value.message


def test_the_same_settings_go_on_without_a_word() -> None:
    assert check_made_with(run_file(*MADE)) == ""


def test_a_new_run_is_held_against_nothing() -> None:
    assert check_made_with(run_file("run.name=other")) == ""


def test_every_setting_that_cannot_change_is_named_with_both_values() -> None:
    said = refusal("run.max_steps=20")
    assert "run.group_size: the run has 16, the run file has 8" in said
    assert "learner.cloning.num_steps: the run has 3, the run file has 0" in said
    assert "learner.cloning.source: the run has {'kind': 'jsonl'" in said
    assert "the run file has None" in said
    assert "max_steps" not in said, "it may change"


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("run.partitions=4", "run.partitions: the run has 8, the run file has 4"),
        ("run.seed=5", "run.seed: the run has 0, the run file has 5"),
        ("learner.cloning.learning_rate=0.5", "learner.cloning.learning_rate: the run has 0.001, the run file has 0.5"),
        ('prompts.source={kind="reasoning_gym", task="chain_sum"}', "prompts.source.kind: the run has 'jsonl'"),
    ],
)
def test_each_of_them_is_refused(override: str, part: str) -> None:
    assert part in refusal(*MADE, override)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("run.max_steps=20", "run.max_steps (10 -> 20)"),
        ("learner.optimizer.learning_rate=1e-3", "learner.optimizer.learning_rate (1e-06 -> 0.001)"),
        ("rollout.replicas=2", "rollout.replicas (1 -> 2)"),
        ("learner.threads=2", "learner.threads (1 -> 2)"),
        ("learner.ranks=2", "learner.ranks (1 -> 2)"),
        ("prompts.source.epochs=2", "prompts.source.epochs (None -> 2)"),
        ('prompts.source.files=["tasks.jsonl", "more.jsonl"]', "prompts.source.files"),
        ("rewards.more.plugin=exact_match", "rewards.more"),
    ],
)
def test_what_may_change_is_told(override: str, part: str) -> None:
    told = check_made_with(run_file(*MADE, override))
    assert told == f"run little goes on with other settings than before: {part}"


def test_where_servers_are_is_not_what_a_run_is() -> None:
    assert check_made_with(run_file(*MADE, "kafka.bootstrap=10.0.0.1:9092", "redis.url=none")) == ""


class TestTheModel:
    def test_may_move(self) -> None:
        Path("model").rename("elsewhere")
        assert check_made_with(run_file(*MADE, "model.path=elsewhere")) == ""

    def test_may_be_written_anew_by_another_release(self) -> None:
        Path("model/config.json").write_text('{"transformers_version": "2",   "width": 8}')
        assert check_made_with(run_file(*MADE)) == ""

    def test_of_another_shape_is_refused(self) -> None:
        make_model(Path("wide"), width=9)
        assert "the run began with model; in wide, config.json has another content" in refusal(*MADE, "model.path=wide")

    def test_with_other_weights_is_refused_under_the_same_path(self) -> None:
        Path("model/model.safetensors").write_bytes(b"WEIGHTS")
        assert "model.safetensors has another content" in refusal(*MADE)

    def test_with_other_files_is_refused(self) -> None:
        Path("model/model.safetensors").rename("model/part-1.safetensors")
        said = refusal(*MADE)
        assert "model.safetensors is gone" in said
        assert "part-1.safetensors is new" in said

    def test_of_a_run_that_kept_none_is_held_against_its_path(self) -> None:
        (FOLDER / MODEL_FILE).unlink()
        make_model(Path("wide"), width=9)
        assert "in wide, config.json" in refusal(*MADE, "model.path=wide")
        Path("model/config.json").unlink()
        assert check_made_with(run_file(*MADE, "model.path=wide")) == "", "nothing says what it was"

    def test_is_kept_once(self) -> None:
        before = (FOLDER / MODEL_FILE).read_bytes()
        Path("model/model.safetensors").write_bytes(b"WEIGHTS")
        keep_model(run_file(*MADE))
        assert (FOLDER / MODEL_FILE).read_bytes() == before

    @pytest.mark.parametrize("content", ["", "[]", "{"])
    def test_that_cannot_be_read_back_is_named(self, content: str) -> None:
        (FOLDER / MODEL_FILE).write_text(content)
        with pytest.raises(SettingsError, match=r"model\.json cannot be read"):
            check_made_with(run_file(*MADE))


def test_check_says_the_same() -> None:
    given = ["up", "--check", "--config", "run.toml"]
    wrong = CliRunner().invoke(cli, given)
    assert "run.group_size: the run has 16, the run file has 8" in str(wrong.exception)
    fine = CliRunner().invoke(
        cli, [*given, *(part for each in (*MADE, "run.max_steps=11") for part in ("--set", each))]
    )
    assert fine.exit_code == 0, fine
    assert "note: run little goes on with other settings than before: run.max_steps (10 -> 11)" in fine.output
