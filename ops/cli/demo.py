"""`rlweave demo`: the whole system on one machine, from nothing to a trained model."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

from pathlib import Path

import click

from ops.cli.run import set_option, state_dir_option


@click.command()
@click.option("--engine", default="torch", show_default=True, help="Engine of the rollout producers.")
@click.option(
    "--task",
    type=click.Choice(["sums", "guess", "calculator"]),
    default="sums",
    show_default=True,
    help="sums: one turn. guess, calculator: environments of several turns.",
)
@set_option
@state_dir_option
@click.option("--quiet", is_flag=True, help="Print only the result.")
def demo(*, engine: str, task: str, overrides: tuple[str, ...], state_dir: Path, quiet: bool) -> int:
    """Train a tiny model, by default to add one-digit numbers, every stage in its own process, and prove the result.

    Starts Kafka and Valkey on this machine if they do not run, makes the model, runs the stages until the learner is
    done, then audits the topics. An earlier demo run of that name is removed first. Leaves summary.json and
    report.html in runs/demo, or in runs/ under the name of the task. The services stay up for `rlweave replay` and
    `rlweave audit`; `rlweave services down` stops them.
    """
    from ops.demo import run_demo

    return run_demo(engine=engine, overrides=overrides, state_dir=state_dir, quiet=quiet, task=task)
