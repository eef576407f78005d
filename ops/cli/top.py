"""`rlweave top`: a run in the terminal while it goes on."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

from pathlib import Path

import click

from ops.cli.common import broker_options, open_run_log, saved_settings


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--once", is_flag=True, help="Print one picture and end; without a terminal this is what happens.")
@broker_options
def top(run: str, *, once: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> None:
    """Show who waits for whom: a verdict, the pipeline with its rates and queues, each process with its last minute.

    In a strip a capital letter works, a small one waits, in proportion to the time. `q` or Ctrl-C ends. NO_COLOR=1
    shows the same without colours.
    """
    import sys

    from rich.console import Console

    from ops.live.facts import facts_of
    from ops.live.follower import Follower, FollowSettings
    from ops.top.watch import LOOK_BACK, PIPE_COLUMNS, show_once, watch
    from pipeline.stage import CONNECT_S
    from topics.clock import Deadline

    settings = saved_settings(run, runs_dir=runs_dir)
    log = open_run_log(run, kafka=kafka, settings=settings, state_dir=state_dir)
    log.connect(deadline=Deadline.after(CONNECT_S))
    heartbeat_s = 1.0 if settings is None else settings.run.heartbeat_s
    follow = FollowSettings(heartbeat_s=heartbeat_s, look_back_events=LOOK_BACK, facts=facts_of(settings))
    is_terminal = sys.stdout.isatty()
    console = Console(markup=False, highlight=False, emoji=False, width=None if is_terminal else PIPE_COLUMNS)
    with Follower(log, settings=follow) as follower:
        if once or not is_terminal:
            show_once(follower, console)
            return
        try:
            watch(follower, console)
        except KeyboardInterrupt:
            return
