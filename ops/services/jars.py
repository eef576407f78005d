"""Where the jars of the local broker come from.

`KAFKA_HOME` wins: its `libs` are used as they are. Otherwise Maven resolves `pom.xml` once into the cache
(`RLWEAVE_CACHE`, default `~/.cache/rlweave`). The directory appears by one rename, under a lock, so it is complete or
absent, and two starters resolve once. Its name carries a digest of `pom.xml`: another pom never finds stale jars.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ops.services.model import ServicesError
from ops.services.state import file_lock

KAFKA_VERSION = "4.4.0"
_POM = Path(__file__).with_name("pom.xml")
_RESOLVE_S = 900.0  # 44 MB from a slow mirror
OTHER_WAYS = "set KAFKA_HOME to an unpacked Kafka >= 4.4, or give a running broker with --kafka host:port"


def cache_dir() -> Path:
    """Directory for what is fetched once per user: `RLWEAVE_CACHE`, else `~/.cache/rlweave`."""
    configured = os.environ.get("RLWEAVE_CACHE")
    return Path(configured).expanduser().absolute() if configured else Path.home() / ".cache" / "rlweave"


def jars_dir() -> Path:
    """Directory that holds the jars, or will once Maven has resolved them: then it exists only when complete."""
    home = os.environ.get("KAFKA_HOME")
    if home:
        return Path(home).expanduser().absolute() / "libs"
    digest = hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]
    return cache_dir() / f"kafka-{KAFKA_VERSION}-{digest}"


def find_jars() -> Path:
    """Return a directory with every jar of the broker, resolving it on first use (seconds to minutes).

    Raises:
        ServicesError: `KAFKA_HOME` is no Kafka, Maven is missing, or it could not resolve the jars.
    """
    jars = jars_dir()
    if jars_version(jars) is not None:
        return jars
    if os.environ.get("KAFKA_HOME"):
        raise ServicesError(f"KAFKA_HOME is set, but {jars} holds no kafka_*.jar", hint=OTHER_WAYS)
    try:
        jars.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServicesError(f"cannot create {jars.parent}: {error.strerror}", hint="set RLWEAVE_CACHE") from error
    with file_lock(jars.parent / f"{jars.name}.lock", timeout_s=_RESOLVE_S):
        if not jars.is_dir():
            _resolve(jars)
    return jars


def jars_version(jars: Path) -> str | None:
    """Kafka version of the jars in a directory, read from a file name; None when it holds no broker."""
    names = sorted(path.name for path in jars.glob("kafka_*.jar"))
    matches = [match for name in names if (match := re.fullmatch(r"kafka_[\d.]+-(\d[\w.]*)\.jar", name))]
    return matches[-1][1] if matches else None


def _resolve(jars: Path) -> None:
    """Have Maven copy the jars next to `jars`, then rename; a failure leaves nothing behind."""
    maven = shutil.which("mvn")
    if maven is None:
        hint = f"install Maven (Debian: apt install maven); or {OTHER_WAYS}"
        raise ServicesError(f"no jars of Kafka {KAFKA_VERSION} in {jars.parent} and no `mvn` on PATH", hint=hint)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix=f".{jars.name}.") as temporary:
        libs = Path(temporary) / "libs"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={libs}", f"-Dkafka.version={KAFKA_VERSION}"]
        command = [maven, "--batch-mode", "--quiet", "--file", str(_POM), *goal]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RESOLVE_S)
        except subprocess.TimeoutExpired as error:
            message = f"Maven did not resolve Kafka {KAFKA_VERSION} within {_RESOLVE_S:g} s"
            raise ServicesError(message, hint=OTHER_WAYS) from error
        if done.returncode != 0 or jars_version(libs) is None:
            said = "\n".join(f"  | {line}" for line in done.stdout.strip().splitlines()[-8:])
            raise ServicesError(f"Maven could not resolve Kafka {KAFKA_VERSION}:\n{said}", hint=OTHER_WAYS)
        libs.rename(jars)
