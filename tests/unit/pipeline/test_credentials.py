"""Secrets come from files or the environment, and are in no setting and no message."""

from __future__ import annotations

import logging
import os
import tomllib
import traceback
from pathlib import Path

import pytest

from ops.run_file import load_run_file, parse_run_file, save_run_file
from pipeline.credentials import (
    MAX_SECRET_BYTES,
    client_config,
    forget_environment,
    read_secret,
    redis_client,
    secret_texts,
    user_of,
)
from pipeline.secrets import HIDDEN, check_no_password, is_secret_name, shown
from pipeline.settings import KafkaSettings, RedisSettings
from schemas.errors import SettingsError
from tests.unit.ops.test_run_file import MINIMAL

SECRET = "s3cr3t-of-the-test"


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def credentials(folder: Path, role: str = "learner") -> Path:
    private(folder / f"{role}.user", f"{role}-of-ours\n")
    private(folder / f"{role}.password", f"{SECRET}\n")
    return folder


def test_without_security_the_config_goes_through_as_it_is() -> None:
    assert client_config(KafkaSettings(config={"debug": "all"}), role="learner") == {"debug": "all"}


def test_a_role_gets_its_own_user_and_password(tmp_path: Path) -> None:
    ca_file = private(tmp_path / "ca.pem", "a certificate")
    settings = KafkaSettings(security="sasl_ssl", credentials_dir=credentials(tmp_path), ca_file=ca_file)
    assert client_config(settings, role="learner") == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca_file),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "learner-of-ours",
        "sasl.password": SECRET,
    }
    with pytest.raises(SettingsError, match=r"reward\.user cannot be read"):
        client_config(settings, role="reward")
    assert user_of(settings, role="learner") == "learner-of-ours"
    assert user_of(settings, role="reward") == "reward"


def test_the_environment_serves_where_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = KafkaSettings(security="sasl_ssl")
    with pytest.raises(SettingsError, match="needs a user"):
        client_config(settings, role="peer")
    monkeypatch.setenv("RLWEAVE_KAFKA_USER", "us")
    with pytest.raises(SettingsError, match="password of Kafka user 'us' is not given"):
        client_config(settings, role="peer")
    monkeypatch.setenv("RLWEAVE_KAFKA_PASSWORD", SECRET)
    config = client_config(settings, role="peer")
    assert (config["sasl.username"], config["sasl.password"]) == ("us", SECRET)
    named = KafkaSettings(security="sasl_ssl", user="them", password_file=private(tmp_path / "p", "from the file"))
    config = client_config(named, role="peer")
    assert (config["sasl.username"], config["sasl.password"]) == ("them", "from the file")
    forget_environment()
    assert "RLWEAVE_KAFKA_PASSWORD" not in os.environ


def test_redis_takes_its_password_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLWEAVE_REDIS_PASSWORD", SECRET)
    client = redis_client(RedisSettings(url="redis://somewhere"))
    assert client._redis.connection_pool.connection_kwargs["password"] == SECRET
    named = RedisSettings(url="redis://us@somewhere", password_file=private(tmp_path / "p", "from the file\n"))
    kwargs = redis_client(named)._redis.connection_pool.connection_kwargs
    assert (kwargs["username"], kwargs["password"]) == ("us", "from the file")
    with pytest.raises(SettingsError, match=r"redis\.ca_file: .*gone\.pem is not a file"):
        redis_client(RedisSettings(url="rediss://somewhere", ca_file=tmp_path / "gone.pem"))


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"a" * (MAX_SECRET_BYTES + 1), b"\xff\xfe", b"\x00"])
def test_a_file_without_exactly_one_secret_is_refused_unseen(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.password"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_secret(path, setting="kafka.password_file")
    assert str(path) in caught.value.message
    assert "lines" not in caught.value.message.replace("one line", "")


def test_a_password_that_others_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = private(tmp_path / "a.password", SECRET)
    with caplog.at_level(logging.WARNING):
        assert read_secret(path, setting="kafka.password_file") == SECRET
        assert caplog.text == ""
        path.chmod(0o644)
        read_secret(path, setting="kafka.password_file")
    assert "can be read by other users" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("ssl.key.password", True),
        ("ssl.keystore.password", True),
        ("ssl.key.pem", True),
        ("sasl.oauthbearer.client.secret", True),
        ("sasl.oauthbearer.config", True),
        ("kafka.config.sasl.password", True),
        ("api_key", True),
        ("auth.token", True),
        ("kafka.password_file", False),
        ("ssl.key.location", False),
        ("rollout.http.api_key_env", False),
        ("prompts.sampling.max_tokens", False),
        ("model.tokenizer", False),
        ("debug", False),
    ],
)
def test_what_is_a_secret_is_known_by_its_name(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_what_is_shown_hides_secrets() -> None:
    assert shown(SECRET, name="kafka.config.sasl.password") == HIDDEN
    assert SECRET not in shown(f"redis://us:{SECRET}@host:1/0")
    assert shown(f"redis://:{SECRET}/@host", name="redis.url") == f"'redis://{HIDDEN}@host'"
    assert shown("redis://host:1/0") == "'redis://host:1/0'"
    assert shown(7) == "7"


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}@host", f"rediss://us:{SECRET}@host/0", f"redis://host?password={SECRET}"]
)
def test_a_url_with_a_password_is_refused_without_being_shown(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds a password"):
        check_no_password(url)
    path = private(tmp_path / "run.toml", MINIMAL)
    for said in (
        _refusal(path, f"redis.url={url}"),
        _refusal(path, f"redis.url.more={url}", f"redis.url={url}"),
    ):
        assert SECRET not in said


@pytest.mark.parametrize(
    ("override", "part"),
    [
        (f'kafka.config={{"sasl.password" = "{SECRET}"}}', "'sasl.password' is a secret"),
        ('kafka.config={"sasl.password" = 31337}', "kafka.config.sasl.password"),
        ('kafka.config={"security.protocol" = "SASL_SSL"}', "use kafka.security"),
        (f"kafka.password={SECRET}", "there is no such setting"),
        ("kafka.user=us", "kafka: Value error, user is set, but security = 'plaintext'"),
        ("kafka.ca_file=ca.pem", "ca_file is set, but security = 'plaintext'"),
    ],
)
def test_secrets_and_contradictions_in_kafka_settings_are_refused(tmp_path: Path, override: str, part: str) -> None:
    said = _refusal(private(tmp_path / "run.toml", MINIMAL), override)
    assert part in said
    assert SECRET not in said
    assert "31337" not in said


def test_two_ways_to_say_who_we_are_are_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "run.toml", MINIMAL)
    said = _refusal(path, "kafka.security=sasl_ssl", "kafka.user=us", "kafka.credentials_dir=here")
    assert "credentials_dir and user are both set" in said


def test_saved_settings_hold_names_of_files_only(tmp_path: Path) -> None:
    values = tomllib.loads(MINIMAL)
    values["kafka"] = {"security": "sasl_ssl", "credentials_dir": str(credentials(tmp_path))}
    run_file = parse_run_file(values, origin="here")
    client_config(run_file.kafka, role="learner")
    save_run_file(run_file, tmp_path / "settings.json")
    text = (tmp_path / "settings.json").read_text()
    assert SECRET not in text
    assert str(tmp_path) in text


def test_no_error_of_the_settings_holds_the_value_itself(tmp_path: Path) -> None:
    path = private(tmp_path / "run.toml", MINIMAL)
    with pytest.raises(SettingsError) as caught:
        load_run_file(path, overrides=[f"redis.url=redis://:{SECRET}@host"])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def _refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_run_file(path, overrides=overrides)
    return f"{caught.value.message}\n{caught.value.hint}"


def test_what_the_environment_calls_a_secret_is_kept_out_of_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JUDGE_API_KEY", "sk-0123456789"), ("X_SECRET", "yes"), ("TOKEN_FILE", "/run/secrets/token")):
        monkeypatch.setenv(name, value)
    found = secret_texts(KafkaSettings(), RedisSettings(), role="reward")
    assert "sk-0123456789" in found
    assert not found & {"yes", "/run/secrets/token"}
