"""The demo: prepares a run of its own, launches it, audits it, reports on it.

Order: (1) settings; (2) services; (3) remains of an earlier demo go; (4) a tiny model; (5) the run; (6) audit;
(7) summary and report.
Failure: the exit code is that of the step that failed; what the run wrote stays for a look.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path

import click

from ops.addresses import resolve
from ops.audit.run import audit_run
from ops.launch import launch
from ops.outputs import check_folder
from ops.replay.sources import RunNotFound
from ops.report.write import write_report
from ops.run_file import RunFile, load_run_file
from ops.runs import delete_run
from ops.wiring import open_log, open_raw_log
from pipeline.engines.backends import check_backend
from pipeline.engines.tiny import make_tiny_model
from pipeline.exit_codes import ExitCode
from topics.access import ADMIN, READER

CONTEXT_TOKENS = 32
TASKS = {"sums": "demo.toml", "guess": "demo_guess.toml", "calculator": "demo_calculator.toml"}
# vLLM has a process of its own per engine and takes long to start.
ENGINE_SETTINGS = {"vllm": ("rollout.replicas=1", "learner.silent_notice_s=240.0", "learner.silent_end_s=480.0")}


def run_demo(*, engine: str, overrides: Sequence[str], state_dir: Path, quiet: bool, task: str = "sums") -> int:
    """Run the demo; returns the exit code.

    Args:
        task: one of `TASKS`.

    Raises:
        RlweaveError: a step before the run itself failed.
    """
    with as_file(files("ops") / TASKS[task]) as path:  # (1)
        run_file = load_run_file(
            path, overrides=[f'rollout.engine="{engine}"', *ENGINE_SETTINGS.get(engine, ()), *overrides]
        )
    check_backend(engine)
    check_folder(run_file.run.folder, setting="run.dir")
    check_folder(run_file.model.path, setting="model.path")
    began_s = time.monotonic()
    click.echo("services: starting Kafka and Valkey if they do not run")
    run_file = resolve(run_file, state_dir=state_dir, start=True)  # (2)
    _delete_earlier(run_file)  # (3)
    make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS)  # (4)
    click.echo(f"run {run_file.run.name}: {run_file.run.max_steps} steps; set-up took {_since(began_s)}")
    run_began_s = time.monotonic()
    code = launch(run_file, state_dir=state_dir, quiet=quiet)  # (5)
    wall_s = time.monotonic() - run_began_s
    if code != ExitCode.OK:
        click.echo(f"error: the run ended with code {code}; its logs are in {run_file.run.folder / 'logs'}", err=True)
        return code
    return _conclude(run_file, wall_s=wall_s)


def _delete_earlier(run_file: RunFile) -> None:
    raw = open_raw_log(run_file, role=ADMIN)
    with suppress(RunNotFound):
        if run_file.run.folder.is_dir():
            click.echo(f"run {run_file.run.name}: the earlier one is removed")
        delete_run(raw, run_file.run.name, folder=run_file.run.folder)


def _conclude(run_file: RunFile, *, wall_s: float) -> int:
    log = open_log(run_file, role=READER)
    audit = audit_run(log, run_file=run_file)  # (6)
    click.echo(audit.text())
    summary = write_report(log, run_file=run_file, audit=audit, wall_s=wall_s)  # (7)
    click.echo(summary.text())
    click.echo(f"report: {run_file.run.folder / 'report.html'}")
    return int(ExitCode.OK if audit.balanced else ExitCode.UNACCOUNTED)


def _since(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.1f} s"
