"""The secrets of secure local services, made once per state directory.

Data out, under `<state dir>/security` (for the owner alone): `ca.pem`, `server.pem` (key and certificates of every
local server), and `credentials/` with `<role>.user`, `<role>.password` and `redis.password`.
Invariants: the directory appears by one rename, so it is complete or absent; a password is in these files only, never
in a process argument or a message.
Failure: `ServicesError` when the package that makes certificates is missing.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from ops.services.model import ServicesAccess, ServicesError
from topics.access import ROLES

SERVER_NAME = "rlweave-server"  # common name; brokers know each other by it
_PASSWORD_BYTES = 24
_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class SecureFiles:
    """Where things are."""

    directory: Path

    @property
    def ca(self) -> Path:
        """Certificate to check the servers against."""
        return self.directory / "ca.pem"

    @property
    def server(self) -> Path:
        """Key and certificates of the servers."""
        return self.directory / "server.pem"

    @property
    def credentials(self) -> Path:
        """Users and passwords."""
        return self.directory / "credentials"

    @property
    def redis_password(self) -> Path:
        """The password of Redis."""
        return self.credentials / "redis.password"

    @property
    def access(self) -> ServicesAccess:
        """What clients need of it."""
        return ServicesAccess(
            ca_file=self.ca, credentials_dir=self.credentials, redis_password_file=self.redis_password
        )

    def passwords(self) -> dict[str, str]:
        """Password per user of Kafka."""
        return {
            (self.credentials / f"{role}.user").read_text().strip(): (self.credentials / f"{role}.password")
            .read_text()
            .strip()
            for role in ROLES
        }


def secure_files(state_dir: Path) -> SecureFiles:
    """The files of a state directory, which need not be there yet."""
    return SecureFiles(state_dir / "security")


def ensure_secure_files(state_dir: Path) -> SecureFiles:
    """Make the files unless they are there. The caller holds the lock of the state directory.

    Raises:
        ServicesError: the package `cryptography` is not installed.
    """
    files = secure_files(state_dir)
    state_dir.chmod(0o700)  # what the brokers keep is as secret as what they are sent
    if files.directory.is_dir():
        return files
    aside = SecureFiles(state_dir / ".security.tmp")
    shutil.rmtree(aside.directory, ignore_errors=True)
    aside.credentials.mkdir(parents=True, mode=0o700)
    aside.directory.chmod(0o700)
    _make_certificates(aside)
    for role in ROLES:
        write_private(aside.credentials / f"{role}.user", role)
        write_private(aside.credentials / f"{role}.password", secrets.token_urlsafe(_PASSWORD_BYTES))
    write_private(aside.redis_password, secrets.token_urlsafe(_PASSWORD_BYTES))
    aside.directory.rename(files.directory)
    return files


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, from its first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text + "\n")


def _make_certificates(files: SecureFiles) -> None:
    try:
        from ops.services.certificates import Authority  # noqa: PLC0415 - not installed everywhere
    except ModuleNotFoundError as error:
        raise ServicesError(
            f"secure services need the package {error.name}", hint="pip install 'rlweave[local]'"
        ) from error
    authority = Authority()
    issued = authority.issue(SERVER_NAME, hosts=_HOSTS)
    write_private(files.ca, authority.certificate.decode())
    write_private(files.server, (issued.key + issued.certificate + authority.certificate).decode())
