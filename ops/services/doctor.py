"""Says what this machine lacks for running rlweave, without importing what may be missing or slow (torch).

Each check is a function that returns one `Finding`; other modules add theirs through `extra_checks`.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.services import jars, programs

_MIN_FREE_BYTES = 4 * 2**30  # a laptop-sized run keeps about 1 GiB of topics, and its checkpoints and versions
_PACKAGES_BYTES = 7 * 2**30  # of a whole set-up: torch alone is more than half of it
_OPTIONAL_PACKAGES = (
    ("torch", "torch"),
    ("transformers", "torch"),
    ("reasoning-gym", "tasks"),
    ("cryptography", "local"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        ok: it is there and usable.
        what: what was looked for, and what needs it.
        found: what was seen.
        hint: how to get it; empty when `ok`.
        required: `rlweave services up` on this machine fails without it; otherwise only some stages need it.
    """

    ok: bool
    what: str
    found: str
    hint: str = ""
    required: bool = True


Check = Callable[[], Finding]


def diagnose(*, state_dir: Path = Path(".rlweave"), extra_checks: Sequence[Check] = ()) -> list[Finding]:
    """Run all checks and return their findings. Starts nothing and writes nothing.

    Args:
        state_dir: where the local services would keep their files.
        extra_checks: checks of other modules, appended (for example: packages that shadow ours).
    """
    return [
        _java(),
        _kafka_jars(),
        _redis(),
        _package("confluent-kafka", hint="pip install rlweave", required=True),
        _package("redis", hint="pip install rlweave", required=True),
        _writable("state directory", state_dir),
        _writable("cache directory", jars.cache_dir()),
        _free_disk(state_dir),
        *(_package(name, hint=f"pip install 'rlweave[{extra}]'") for name, extra in _OPTIONAL_PACKAGES),
        *(check() for check in extra_checks),
    ]


def _java() -> Finding:
    what = f"Java >= {programs.MIN_JAVA} (local Kafka)"
    program = programs.java_program()
    if program is None:
        return Finding(ok=False, what=what, found="none", hint=programs.JAVA_HINT)
    major = programs.java_major(program)
    ok = major is not None and major >= programs.MIN_JAVA
    return Finding(ok=ok, what=what, found=f"{major} at {program}", hint="" if ok else programs.JAVA_HINT)


def _kafka_jars() -> Finding:
    what = f"Kafka {jars.KAFKA_VERSION} jars, or Maven to fetch them (local Kafka)"
    directory = jars.jars_dir()
    version = jars.jars_version(directory)
    if version is not None:
        return Finding(ok=True, what=what, found=f"{version} in {directory}")
    maven = shutil.which("mvn")
    if maven is not None and "KAFKA_HOME" not in os.environ:
        return Finding(ok=True, what=what, found=f"{maven}; the first `services up` fetches 44 MB")
    found = f"KAFKA_HOME is set, but {directory} holds no kafka_*.jar" if "KAFKA_HOME" in os.environ else "neither"
    return Finding(
        ok=False, what=what, found=found, hint=f"install Maven (Debian: apt install maven); {jars.OTHER_WAYS}"
    )


def _redis() -> Finding:
    what = "Valkey or Redis server (local Redis)"
    program = programs.redis_program()
    if program is None:
        return Finding(ok=False, what=what, found="none", hint=programs.REDIS_HINT)
    return Finding(ok=True, what=what, found=f"{programs.redis_version(program)} at {program}")


def _package(distribution: str, *, hint: str, required: bool = False) -> Finding:
    what = f"Python package {distribution}"
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Finding(ok=False, what=what, found="not installed", hint=hint, required=required)
    return Finding(ok=True, what=what, found=found, required=required)


def _writable(what: str, directory: Path) -> Finding:
    parent = _nearest(directory)
    ok = os.access(parent, os.W_OK | os.X_OK)
    found = (
        f"{directory}" if parent == directory.expanduser().absolute() else f"{directory} (would be made in {parent})"
    )
    hint = "" if ok else f"make {parent} writable, or choose another: --state-dir, RLWEAVE_CACHE"
    return Finding(ok=ok, what=f"writable {what}", found=found if ok else f"{parent} is not writable", hint=hint)


def _free_disk(directory: Path) -> Finding:
    free_bytes = shutil.disk_usage(_nearest(directory)).free
    is_set_up = _package("torch", hint="").ok
    needed_bytes = _MIN_FREE_BYTES + (0 if is_set_up else _PACKAGES_BYTES)
    ok = free_bytes >= needed_bytes
    kept = "topics, checkpoints" if is_set_up else "topics, checkpoints, packages still to be installed"
    what = f"free disk >= {needed_bytes / 2**30:g} GiB ({kept})"
    hint = "" if ok else "free some space, or put the state directory on another disk with --state-dir"
    return Finding(ok=ok, what=what, found=f"{free_bytes / 2**30:.1f} GiB", hint=hint)


def _nearest(directory: Path) -> Path:
    """The directory itself, or the closest of its parents that exists."""
    absolute = directory.expanduser().absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())
