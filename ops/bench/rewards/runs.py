"""Runs of a benchmark of rewards: settings after the demo's, topics, and their processes.

Data in: names, rewards, servers. Data out: a `RunFile` whose topics exist and whose settings are saved; a crew.
Failure: `SettingsError`, `LogError`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from pathlib import Path

from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.run_ends import LogEnds
from ops.run_file import RunFile, Toml, parse_run_file, save_run_file
from ops.wiring import open_log, programs
from pipeline.stage import CONNECT_S
from pipeline.weights.tokens import load_or_create_token
from topics.clock import Deadline

WITHOUT_END = 10_000_000
PARTITIONS = 4


def make_run(
    name: str, *, folder: Path, servers: Servers, rewards: Mapping[str, dict[str, Toml]] | None = None
) -> RunFile:
    """A run like the demo without an end.

    Args:
        rewards: in place of the demo's.

    Raises:
        SettingsError, LogError: see the module.
    """
    values: dict[str, Toml] = tomllib.loads((files("ops") / "demo.toml").read_text())
    told: dict[str, dict[str, Toml]] = {
        "run": {"name": name, "dir": str(folder), "max_steps": WITHOUT_END, "partitions": PARTITIONS},
        "model": {"path": str(folder / "model")},
        "learner": {"oracle_file": str(folder / f"oracle-{name}.jsonl")},
        "kafka": {"bootstrap": servers.bootstrap},
        "redis": {"url": servers.redis_url},
    }
    for section, changes in told.items():
        known = values.get(section, {})
        values[section] = {**(known if isinstance(known, dict) else {}), **changes}
    if rewards is not None:
        values["rewards"] = dict(rewards)
    run_file = parse_run_file(values, origin="the benchmark")
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    load_or_create_token(run_file.run.folder / "peer-token")
    save_run_file(run_file, settings_of(run_file))
    return run_file


def settings_of(run_file: RunFile) -> Path:
    """Where its settings are saved."""
    return run_file.run.folder / "settings.json"


def make_crew(run_file: RunFile, *, stages: Collection[str], say: Callable[[str], None]) -> Crew:
    """The processes of these stages, under the supervisor; not started yet."""
    all_of_them = programs(run_file, settings_file=settings_of(run_file))
    return Crew(
        [program for program in all_of_them if program.stage in stages],
        run_file.supervisor,
        ends=LogEnds(open_log(run_file), run_file=run_file),
        say=say,
    )
