"""What the settings name is looked at before anything starts, by `up` and by `up --check`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.cli.main import cli
from ops.named_checks import launcher_role, teller_role
from pipeline.engines.tiny import make_tiny_model
from schemas.errors import RlweaveError
from tests.unit.ops.test_run_file import MINIMAL
from topics.access import STAGES, grants

TASK = '{"question": "1 + 1", "answer": "2"}\n'
SASL = ["kafka.security=sasl_plaintext", "kafka.bootstrap=127.0.0.1:1"]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file and all that it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("RLWEAVE_KAFKA_USER", "RLWEAVE_KAFKA_PASSWORD", "RLWEAVE_PEER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of plug-ins: what is written is held against what was there
    Path("run.toml").write_text(MINIMAL)
    Path("tasks.jsonl").write_text(TASK)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("broken.py").write_text("engine = 3\n")
    return tmp_path


def refusal(*overrides: str, check: bool = True, only: str | None = None) -> str:
    arguments = ["up", "--config", "run.toml", *(["--check"] if check else []), *(["--only", only] if only else [])]
    said = CliRunner().invoke(cli, [*arguments, *(part for each in overrides for part in ("--set", each))])
    if said.exit_code == 0:
        return ""
    assert isinstance(said.exception, RlweaveError), said
    return f"{said.exception.message} | {said.exception.hint}"


def test_what_is_there_passes_and_nothing_is_made(desk: Path) -> None:
    before = sorted(desk.rglob("*"))
    assert refusal() == ""
    assert sorted(desk.rglob("*")) == before


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["rollout.engine=tourch"], ["no plug-in 'tourch'", "rlweave.engines", "built in: http, scripted, torch"]),
        (["rollout.engine=broken.py:engine"], ["'broken.py:engine' is a int, not a Backend", "takes BackendSettings"]),
        (["learner.advantage=broken.py:engine"], ["'broken.py:engine'", "is a int, not a function"]),
        (["learner.algorithm=dpo", "learner.loss.minibatches=2"], ["best and the worst member", "minibatches = 1"]),
        (["reference.path=nowhere"], ["reference.path = nowhere has no config.json"]),
        (["model.device=gpu"], ["model.device: 'gpu' is no device", "cpu, cuda and cuda:<n>"]),
        (["model.device=cuda:99"], ["model.device: device 'cuda:99' was asked for", "use device cpu"]),
        (["reference.device=cuda:99"], ["reference.device: device 'cuda:99' was asked for"]),
        (["environment.plugin=gues"], ["no plug-in 'gues'", "rlweave.environments", "built in: calculator, guess"]),
        (["environment.plugin=guess", "environment.options.high=-1"], ["refuses its options", "there is none"]),
        (["run.dir=run.toml"], ["run.dir: run.toml/little cannot be written", "is a file, not a folder"]),
        (["run.dir=/proc/rlweave-no"], ["run.dir: /proc/rlweave-no/little cannot be written"]),
        ([*SASL, "kafka.user=me", "kafka.password_file=gone"], ["kafka.password_file: gone cannot be read"]),
        ([*SASL, "kafka.credentials_dir=gone"], ["kafka.credentials_dir: gone/admin.user cannot be read"]),
        ([*SASL], ["needs a user, and none is given"]),
        (["kafka.bootstrap=127.0.0.1:1", "kafka.security=ssl", "kafka.ca_file=gone"], ["kafka.ca_file: gone"]),
        (["redis.url=redis://127.0.0.1:1", "redis.password_file=gone"], ["redis.password_file: gone cannot be read"]),
        (["weights.token_file=gone"], ["weights.token_file = gone cannot be read"]),
        (["weights.tls_cert=gone"], ["tls_cert gone cannot be read"]),
        (["weights.tls_ca=gone"], ["tls_ca gone cannot be read"]),
        (["scheduler.policy=clever"], ["no plug-in 'clever'", "built in: reactive, stage_aware, static"]),
        (["learner.oracle_file=/proc/rlweave-no"], ["learner.oracle_file: /proc/rlweave-no cannot be written"]),
        (["learner.cloning.num_steps=1", "learner.cloning.source.files=['gone.jsonl']"], ["gone.jsonl"]),
        (
            [
                "learner.cloning.num_steps=3",
                "learner.cloning.batch_size=2",
                "learner.cloning.source.files=['tasks.jsonl']",
                "learner.cloning.source.epochs=4",
            ],
            ["3 steps of 2 need 5 demonstrations or more", "ends after 4", "more learner.cloning.source.epochs"],
        ),
    ],
)
def test_what_is_not_there_is_named(overrides: list[str], parts: list[str], check: bool, desk: Path) -> None:
    before = sorted(desk.rglob("*"))
    said = refusal(*overrides, check=check)
    assert all(part in said for part in parts), said
    assert sorted(desk.rglob("*")) == before, "something was started or written"


def test_an_engine_whose_package_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "needs the package vllm, which is not installed | install rlweave[vllm]" in refusal("rollout.engine=vllm")
    assert "needs the package torch, which is not installed" in refusal()


def test_credentials_are_those_of_the_stages_that_run_here() -> None:
    folder = Path("users")
    folder.mkdir()
    for role in ("reader", "rollout"):
        for kind in ("user", "password"):
            (folder / f"{role}.{kind}").touch(mode=0o600)
            (folder / f"{role}.{kind}").write_text(role)
    given = [*SASL, "kafka.credentials_dir=users"]
    assert refusal(*given, only="rollout") == ""
    assert "users/peer.user cannot be read" in refusal(*given, only="rollout,peer")
    assert "users/admin.user cannot be read" in refusal(*given, only="rollout,scheduler")
    assert refusal(*given, only="rollout,reference") == "", "there is no reference model to be started"
    assert "users/reference.user cannot be read" in refusal(*given, "reference={}", only="rollout,reference")


@pytest.mark.parametrize(
    "stages", [STAGES, ("rollout",), ("reward",), ("peer",), ("scheduler", "reward"), ("learner",)]
)
def test_who_starts_processes_may_read_commands_and_say_what_it_does(stages: tuple[str, ...]) -> None:
    assert _allows(launcher_role(stages), "read", topic="commands")
    assert _allows(teller_role(stages), "write", topic="events")
    assert _allows(teller_role(stages), "write", topic="dead-letters")
    assert teller_role(stages) in {launcher_role(stages), *stages}, "its credentials are looked for at the start"


def _allows(role: str, operation: str, *, topic: str) -> bool:
    name = f"rlweave.little.{topic}"
    return any(
        each.resource == "topic"
        and each.operation == operation
        and (name.startswith(each.name) if each.prefixed else name == each.name)
        for each in grants(role, run="little")
    )


def test_a_part_needs_no_engine_of_another_machine() -> None:
    assert refusal("rollout.engine=tourch", "scheduler.policy=clever", only="prompts") == ""


def test_more_tokens_than_the_context_holds_are_a_warning(desk: Path) -> None:
    (desk / "model" / "config.json").write_text('{"max_position_embeddings": 32}')
    arguments = ["up", "--config", "run.toml", "--check", "--set", "prompts.max_tokens=32"]
    said = CliRunner().invoke(cli, arguments)
    assert said.exit_code == 0
    assert "warning: prompts.max_tokens = 32 is not below the context of model, 32 tokens" in said.output
    assert "context" not in CliRunner().invoke(cli, [*arguments, "--set", "prompts.max_tokens=31"]).output


@pytest.fixture
def little_model(desk: Path) -> Path:
    """The folder that the run file names holds a model."""
    make_tiny_model(desk / "model", seed=0)
    return desk / "model"


def test_layers_for_adapters_are_looked_for_in_the_model(little_model: Path) -> None:
    assert refusal("learner.lora.rank=2", "learner.lora.target_modules=['q_proj']") == ""
    said = refusal("learner.lora.rank=2", "learner.lora.target_modules=['c_attn']")
    assert "no linear layer named c_attn; it has down_proj, " in said
    assert "lm_head" not in said  # it is tied, so naming it would be refused, too
    assert "shares its weight" in refusal("learner.lora.rank=2", "learner.lora.target_modules=['lm_head']")
    assert refusal("learner.lora.rank=2", "learner.lora.target_modules=['c_attn']", only="rollout") == ""


def warned(*, only: str | None = None) -> str:
    arguments = ["up", "--config", "run.toml", "--check", *(["--only", only] if only else [])]
    said = CliRunner().invoke(cli, arguments)
    assert said.exit_code == 0, said.output
    return said.stderr


def test_prompts_with_characters_that_the_tokenizer_lacks_are_warned_of(little_model: Path) -> None:
    assert "no token" not in warned()
    Path("tasks.jsonl").write_text(TASK + '{"question": "2 \u00d7 3", "answer": "6"}\n')
    assert "prompts.source: the tokenizer of model has no token for parts of 1 of the first 2 prompts" in warned()
    assert "for example of '\u00d7' in '2 \u00d7 3'" in warned()
    assert "no token" not in warned(only="learner")
