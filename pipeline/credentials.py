"""Passwords and certificates: from files or the environment to the clients, and nowhere else.

Role: turns `[kafka]` and `[redis]` into what their clients need.
Data in: settings, which name files; `RLWEAVE_KAFKA_USER`, `RLWEAVE_KAFKA_PASSWORD`, `RLWEAVE_REDIS_PASSWORD` where they
name none. Data out: library settings, a `RedisClient`.
Invariants: secrets are read when a client is made and are never part of settings, so they cannot get into
settings.json, arguments, logs or messages; a password in a URL or in `kafka.config` is refused.
Failure: `SettingsError` naming the file or variable, never its content.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from pipeline.redis_client import RedisClient
from pipeline.secrets import is_secret_name
from pipeline.settings import KafkaSettings, RedisSettings
from pipeline.weights.tokens import TOKEN_VARIABLE
from schemas.errors import SettingsError

MAX_SECRET_BYTES = 4096
_LEAST_OTHER_CHARS = 12
_SECRET_VARIABLES = ("RLWEAVE_KAFKA_USER", "RLWEAVE_KAFKA_PASSWORD", "RLWEAVE_REDIS_PASSWORD")
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
_log = logging.getLogger(__name__)


def client_config(settings: KafkaSettings, *, role: str) -> dict[str, str]:
    """Library settings of the Kafka clients of one role, `kafka.config` included.

    Args:
        role: whose user and password to take from `credentials_dir`.

    Raises:
        SettingsError: a file cannot be read, or no user or password is given.
    """
    config = dict(settings.config)
    if settings.security == "plaintext":
        return config
    config["security.protocol"] = settings.security.upper()
    if settings.ca_file is not None:
        config["ssl.ca.location"] = str(_existing(settings.ca_file, setting="kafka.ca_file"))
    if settings.security.startswith("sasl_"):
        config |= _login(settings, role=role)
    return config


def redis_client(settings: RedisSettings, *, timeout_s: float = 2.0) -> RedisClient:
    """The client of `settings.url`. Connects to nothing yet.

    Raises:
        SettingsError: a file cannot be read, or the URL cannot.
    """
    password = os.environ.get("RLWEAVE_REDIS_PASSWORD")
    if settings.password_file is not None:
        password = read_secret(settings.password_file, setting="redis.password_file")
    ca_file = settings.ca_file
    if ca_file is not None:
        _existing(ca_file, setting="redis.ca_file")
    return RedisClient(settings.url, password=password, ca_file=ca_file, timeout_s=timeout_s)


def user_of(settings: KafkaSettings, *, role: str) -> str:
    """The Kafka user of a role: what `credentials_dir` says, else `kafka.user`, else the role's own name.

    Raises:
        SettingsError: its file is there and cannot be read.
    """
    if settings.credentials_dir is not None:
        path = settings.credentials_dir / f"{role}.user"
        return read_secret(path, setting="kafka.credentials_dir") if path.exists() else role
    return role if settings.user is None else settings.user


def forget_environment() -> None:
    """Take the secrets out of the environment, so that what this process starts from here on does not get them."""
    for name in _SECRET_VARIABLES:
        os.environ.pop(name, None)


def secret_texts(kafka: KafkaSettings, redis: RedisSettings, *, role: str) -> set[str]:
    """The passwords that this process has, and what else the environment holds under the name of a secret, so that they
    can be kept out of what it says; what cannot be read is not one that it uses."""
    files = [kafka.password_file, redis.password_file]
    if kafka.credentials_dir is not None:
        files.append(kafka.credentials_dir / f"{role}.password")
    found = {os.environ.get(name, "") for name in (*_SECRET_VARIABLES, TOKEN_VARIABLE)} - {
        os.environ.get("RLWEAVE_KAFKA_USER", "")
    }
    # Keys of judges, stores and collectors: any plug-in or library may say them. A short one is an ordinary word.
    found |= {
        value for name, value in os.environ.items() if is_secret_name(name.lower()) and len(value) >= _LEAST_OTHER_CHARS
    }
    for path in files:
        if path is not None:
            with suppress(OSError, UnicodeDecodeError):
                found.add(path.read_text(encoding="utf-8")[:MAX_SECRET_BYTES].rstrip("\r\n"))
    return found - {""}


def public_environment() -> dict[str, str]:
    """The environment without secrets: for code that is not ours, such as scorers."""
    return {name: value for name, value in os.environ.items() if name not in (*_SECRET_VARIABLES, TOKEN_VARIABLE)}


def read_secret(path: Path, *, setting: str) -> str:
    """The only line of a file, without its end.

    Raises:
        SettingsError: the file cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as handle:
            mode = os.fstat(handle.fileno()).st_mode
            content = handle.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"{setting}: {path} cannot be read: {error.strerror}",
            hint="a file with the password (or user) on one line, readable for the user that runs this process",
        ) from error
    if mode & _READABLE_BY_OTHERS and "password" in path.name:
        _log.warning("%s: %s can be read by other users of this machine (mode %o)", setting, path, mode & 0o777)
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > MAX_SECRET_BYTES or not text.isprintable():
        raise SettingsError(
            f"{setting}: {path} does not hold one line of 1 to {MAX_SECRET_BYTES} bytes of printable text"
        ) from None
    return text


def _login(settings: KafkaSettings, *, role: str) -> dict[str, str]:
    user, password = _user_and_password(settings, role=role)
    if not user:
        raise SettingsError(
            f"kafka.security = {settings.security!r} needs a user, and none is given",
            hint="set kafka.credentials_dir, or kafka.user, or RLWEAVE_KAFKA_USER",
        )
    if not password:
        raise SettingsError(
            f"the password of Kafka user {user!r} is not given",
            hint="set kafka.credentials_dir, or kafka.password_file, or RLWEAVE_KAFKA_PASSWORD",
        )
    return {"sasl.mechanism": settings.sasl_mechanism, "sasl.username": user, "sasl.password": password}


def _user_and_password(settings: KafkaSettings, *, role: str) -> tuple[str | None, str | None]:
    folder = settings.credentials_dir
    if folder is not None:
        of_role = read_secret(folder / f"{role}.user", setting="kafka.credentials_dir")
        return of_role, read_secret(folder / f"{role}.password", setting="kafka.credentials_dir")
    user = settings.user if settings.user is not None else os.environ.get("RLWEAVE_KAFKA_USER")
    if settings.password_file is not None:
        return user, read_secret(settings.password_file, setting="kafka.password_file")
    return user, os.environ.get("RLWEAVE_KAFKA_PASSWORD")


def _existing(path: Path, *, setting: str) -> Path:
    if not path.is_file():
        raise SettingsError(
            f"{setting}: {path} is not a file",
            hint="give the PEM file with the certificate of the authority that signed the server's",
        )
    return path
