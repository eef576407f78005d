"""`rlweave status`: what every process of a run is doing, lag, and the ledger in a line."""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.common import ago, broker_options, json_flag, open_raw_log, run_option, saved_settings
from ops.pace_view import pace_lines

if TYPE_CHECKING:
    from ops.status import GroupLag, ProcessStatus, RunStatus, Standing

_ENDED = ("stopped", "gone")  # standings


@click.command()
@run_option
@click.option("--all", "show_all", is_flag=True, help="Show processes that have stopped or are gone, too.")
@json_flag
@broker_options
def status(run: str, *, show_all: bool, as_json: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> None:
    """Show stage, phase, last heartbeat, version and gauges of each process, and how far groups are behind."""
    import orjson

    from ops.status import status_of
    from topics.clock import SystemClock

    settings = saved_settings(run, runs_dir=runs_dir)
    log = open_raw_log(kafka, settings=settings, state_dir=state_dir)
    seen = status_of(log, run) if settings is None else status_of(log, run, heartbeat_s=settings.run.heartbeat_s)
    now_ms = SystemClock().unix_ms()
    if as_json:
        click.echo(orjson.dumps(_values(seen, now_ms=now_ms), option=orjson.OPT_INDENT_2).decode())
        return
    for line in lines_of(seen, now_ms=now_ms, show_all=show_all):
        click.echo(line)


def lines_of(seen: RunStatus, *, now_ms: int, show_all: bool) -> Iterator[str]:
    """The picture as text; gauges and instances on lines of their own, so 80 columns are enough."""
    state = "sealed" if seen.sealed else "not sealed"
    yield f"run {seen.run}: lineage {seen.lineage}, step {seen.step}, {state}"
    yield f"groups: {seen.num_prompts} admitted, {seen.num_closed} closed, {seen.num_open} open"
    yield ""
    standings = {process.instance: seen.standing(process, now_ms=now_ms) for process in seen.processes}
    shown = [process for process in seen.processes if show_all or standings[process.instance] not in _ENDED]
    yield f"{'stage':<14} {'phase':<20} {'heartbeat':>9} {'version':>8}  instance"
    for process in shown:
        if not process.is_late:
            yield from _process(process, standings[process.instance], now_ms=now_ms)
    if len(shown) < len(seen.processes):
        counts = Counter[str](standings.values())
        ended = ", ".join(f"{counts[word]} {word}" for word in _ENDED if counts[word])
        yield f"({ended}; --all shows them)"
    late = [process for process in shown if process.is_late]
    if late:
        yield "after the run's end:"
    for process in late:
        yield from _process(process, standings[process.instance], now_ms=now_ms)
    yield ""
    yield f"{'topic':<16} {'lag':>12}  group"
    yield from (f"{lag.topic:<16} {_lag(lag):>12}  {lag.group}" for lag in seen.lag)
    for process in seen.processes:
        if process.stage == "scheduler" and standings[process.instance] == "at work":
            yield from pace_lines(process.gauges, run=seen.run)


def _process(process: ProcessStatus, standing: Standing, *, now_ms: int) -> Iterator[str]:
    beat = "none" if process.heartbeat_unix_ms is None else ago(now_ms - process.heartbeat_unix_ms)
    version = "-" if process.version is None else str(process.version)
    gauges = " ".join(f"{name}={value:g}" for name, value in process.key_gauges().items())
    doing = process.phase if standing == "at work" else standing
    if standing == "not heard":
        doing = f"not heard for {ago(now_ms - process.heard_unix_ms)}"
        gauges = f"last: {process.phase} {gauges}"
    yield f"{process.name:<14} {doing:<20} {beat:>9} {version:>8}  {process.instance}"
    if gauges:
        yield f"{'':<14} {gauges}"


def _lag(lag: GroupLag) -> str:
    return "unknown" if lag.lag_records is None else str(lag.lag_records)


def _values(seen: RunStatus, *, now_ms: int) -> dict[str, object]:
    return {
        "run": seen.run,
        "lineage": seen.lineage,
        "step": seen.step,
        "sealed": seen.sealed,
        "groups": {"admitted": seen.num_prompts, "closed": seen.num_closed, "open": seen.num_open},
        "processes": [
            {
                "stage": process.stage,
                "reward": process.labels.get("reward"),
                "instance": process.instance,
                "phase": process.phase,
                "stopped": process.stopped,
                "after_the_end": process.is_late,
                "standing": seen.standing(process, now_ms=now_ms),
                "heartbeat_age_s": None
                if process.heartbeat_unix_ms is None
                else max(0.0, (now_ms - process.heartbeat_unix_ms) / 1000),
                "version": None if process.version is None else str(process.version),
                "gauges": dict(process.gauges),
            }
            for process in seen.processes
        ],
        "lag": [
            {
                "group": lag.group,
                "topic": lag.topic,
                "lag_records": lag.lag_records,
                "partitions_unknown": lag.num_unknown,
            }
            for lag in seen.lag
        ],
    }
