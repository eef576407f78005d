"""The run file: what is read, what is refused and how that is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ops.run_file import RunFile, load_run_file, load_saved, parse_run_file, save_run_file
from schemas.errors import SettingsError

MINIMAL = """
[run]
name = "little"
[model]
path = "model"
[prompts.source]
files = ["tasks.jsonl"]
[rewards.sum]
plugin = "number_match"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(MINIMAL)
    return file


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_run_file(path, overrides=overrides)
    return f"{caught.value.message} | {caught.value.hint}"


def test_sections_that_are_left_out_have_defaults(path: Path) -> None:
    run_file = load_run_file(path)
    assert run_file.run.folder == Path("runs/little")
    assert run_file.required_rewards == {"sum": 1.0}
    assert run_file.redis.url == "local"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("run.max_stalenes=3", ["run.max_stalenes", "no such setting", "did you mean run.max_staleness"]),
        ("max_steps=3", ["max_steps: there is no such setting; did you mean run.max_steps"]),
        ("learner.checkpoint.upload=/mnt/copies", ["learner.checkpoint.upload", "file:///absolute/path"]),
        ("learner.checkpoint.upload=s3://b/a?sig=abcdef", ["holds a password", "sig=***"]),
        ("traffic.rates.checkpoint=1", ["traffic.rates", "there is no traffic class 'checkpoint'", "classes are"]),
        ("traffic.background_phases=['noon']", ["traffic.background_phases", "'cloning'"]),
        ("traffic.link_bytes_s=0", ["traffic.link_bytes_s", "greater than 0"]),
        ("learner.treads=3", ["did you mean learner.threads"]),
        ("rewards.sum.wieght=3", ["did you mean rewards.NAME.weight"]),
        ("runs.name=x", ["runs", "no such setting"]),
        ("run.group_size=0", ["run.group_size", "greater than or equal to 1", "seen: 0"]),
        ("rollout.max_replicas=0", ["rollout.max_replicas", "greater than or equal to 1", "seen: 0"]),
        ("rollout.min_replicas=2", ["rollout", "replicas = 1 is not within min_replicas = 2 and max_replicas = 1"]),
        (
            "rewards.sum={plugin='number_match', replicas=3, max_replicas=2}",
            ["rewards.sum", "replicas = 3 is not within min_replicas = 3 and max_replicas = 2"],
        ),
        ("run.group_size=many", ["run.group_size", "integer", "seen: 'many'"]),
        ("run.group_size=1.5", ["run.group_size", "integer", "seen: 1.5"]),
        ("run.on_stale=never", ["run.on_stale", "'drop', 'wait' or 'train'", "seen: 'never'"]),
        ("run.heartbeat_s=inf", ["run.heartbeat_s", "finite", "seen: inf"]),
        ("run.heartbeat_s=-1", ["run.heartbeat_s", "greater than 0", "seen: -1"]),
        ("run.metrics_port=70000", ["run.metrics_port", "65535", "seen: 70000"]),
        ('run.name="No Such"', ["run.name", "'No Such'", "lower-case"]),
        ("prompts.top_p=1.5", ["prompts.top_p", "less than or equal to 1", "seen: 1.5"]),
        ("learner.optimizer.learning_rate=0", ["learner.optimizer.learning_rate", "greater than 0"]),
        ("model.dtype=int8", ["model.dtype", "'float32', 'bfloat16' or 'float16'", "seen: 'int8'"]),
        ("learner.algorithm=ppo2", ["learner.algorithm", "'grpo'", "'step_grpo'", "seen: 'ppo2'"]),
        ("learner.loss.reference_kl=0.1", ["reference_kl is above 0, and no section [reference]"]),
        ("learner.optimizer.schedule=cosine", ["learner.optimizer", "needs schedule_steps above warmup_steps = 0"]),
        ('rewards."a b".plugin=x', ["rewards", "'\"a b\"'"]),
        ("prompts.source.kind=reasoning_gym", ["prompts.source", "does not use `files`"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_seen_and_what_is_allowed(
    path: Path, override: str, parts: list[str]
) -> None:
    said = refusal(path, override)
    assert all(part in said for part in parts), said
    assert str(path) in said


def test_bfloat16_arithmetic_and_engines_in_bfloat16_need_a_wire_in_bfloat16(path: Path) -> None:
    both = ("learner.compute_dtype=bfloat16", "model.dtype=bfloat16")
    assert 'weights.wire_dtype = "bfloat16"' in refusal(path, *both)
    load_run_file(path, overrides=(*both, "weights.wire_dtype=bfloat16"))
    load_run_file(path, overrides=both[:1])


def test_all_wrong_settings_are_named_at_once(path: Path) -> None:
    said = refusal(path, "run.group_size=0", "run.seed=-1", "kafka.port=9")
    assert "3 setting(s) are wrong" in said
    assert all(name in said for name in ("run.group_size", "run.seed", "kafka.port"))


def test_a_section_that_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "x"\n')
    said = refusal(file)
    assert all(f"{name}: Field required" in said for name in ("model", "prompts", "rewards"))


def test_a_file_that_is_absent_or_no_toml_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "absent.toml")
    file = tmp_path / "run.toml"
    file.write_text("[run\n")
    assert "is not TOML" in refusal(file)
    file.write_bytes(b"\xff\xfe")
    assert "is not TOML" in refusal(file)


@pytest.mark.parametrize(
    ("override", "part"),
    [("run.seed", "section.key=value"), ("=3", "section.key=value"), ("run.name.x=1", "'name' is a value")],
)
def test_an_override_of_another_form_is_refused(path: Path, override: str, part: str) -> None:
    assert part in refusal(path, override)


def test_overrides_win_and_take_toml_or_plain_text(path: Path) -> None:
    run_file = load_run_file(
        path, overrides=["run.seed=5", "run.on_stale=wait", 'prompts.stop=["\\n"]', "rewards.more.plugin=exact_match"]
    )
    assert (run_file.run.seed, run_file.run.on_stale, run_file.prompts.stop) == (5, "wait", ("\n",))
    assert sorted(run_file.required_rewards) == ["more", "sum"]


def test_what_is_saved_is_read_back(path: Path, tmp_path: Path) -> None:
    run_file = load_run_file(path, overrides=["rewards.shadow.plugin=exact_match", "rewards.shadow.weight=0"])
    saved = tmp_path / "runs" / "settings.json"
    save_run_file(run_file, saved)
    assert load_saved(saved) == run_file
    assert isinstance(load_saved(saved), RunFile)


def test_saved_settings_that_are_absent_or_of_another_version_are_refused(tmp_path: Path) -> None:
    saved = tmp_path / "settings.json"
    with pytest.raises(SettingsError, match="cannot be read"):
        load_saved(saved)
    saved.write_text('{"run": {"name": "x", "of_tomorrow": 1}}')
    with pytest.raises(SettingsError, match=r"run\.of_tomorrow"):
        load_saved(saved)


def test_values_from_elsewhere_name_their_origin() -> None:
    with pytest.raises(SettingsError, match="a test: 4 setting"):
        parse_run_file({}, origin="a test")


def test_saved_settings_are_for_their_owner_only_whatever_was_left_behind(path: Path, tmp_path: Path) -> None:
    (tmp_path / ".settings.json.tmp").write_text("of a process that was killed")
    save_run_file(load_run_file(path, overrides=["redis.url=redis://user@host:1/0"]), tmp_path / "settings.json")
    assert (tmp_path / "settings.json").stat().st_mode & 0o777 == 0o600
    assert load_saved(tmp_path / "settings.json").redis.url == "redis://user@host:1/0"


@pytest.mark.parametrize("setting", ["loss.importance_cap", "loss.clip_high", "optimizer.weight_decay"])
def test_infinity_is_refused_since_saved_settings_could_not_hold_it(path: Path, setting: str) -> None:
    assert f"learner.{setting}: Input should be a finite number" in refusal(path, f"learner.{setting}=inf")


def test_parts_that_begin_together_save_their_settings_whole(path: Path, tmp_path: Path) -> None:
    """Each writes its own file aside."""
    run_file, saved = load_run_file(path), tmp_path / "settings.json"
    code = "import sys; from pathlib import Path; from ops.run_file import *; f = load_saved(Path(sys.argv[1]))\n"
    code += "for _ in range(200): save_run_file(f, Path(sys.argv[1]))"
    save_run_file(run_file, saved)
    both = [subprocess.Popen([sys.executable, "-c", code, str(saved)]) for _ in range(2)]
    assert [each.wait(120) for each in both] == [0, 0]
    assert load_saved(saved) == run_file
    assert saved.stat().st_mode & 0o077 == 0
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")] == []
