"""The page of the command line: every command with its arguments and options.

Data in: the click commands. Data out: Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from ops.cli.main import COMMANDS, cli
from ops.reference.marks import cell, code, page, plain, table

_INTRO = """
Every command has `--help`. Errors end with `error:` and `hint:` on standard error and one of the
[exit codes](../runbook.md#exit-codes). In a checkout the command is `.venv/bin/rlweave`; with `.venv` active, or where
the package is installed, it is `rlweave`."""


def commands_page() -> str:
    """The page."""
    rows = [(f"[{code(f'rlweave {name}')}](#{_anchor((name,))})", text) for name, (_, text) in COMMANDS.items()]
    parts = [part for path, command in all_commands() for part in (_command(path, command),)]
    return page("Command line", _INTRO, table(("command", "what it does"), rows), *parts)


def all_commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and subcommand, by its words after `rlweave`."""
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        if command is not None:
            yield from _with_children((name,), command)


def _with_children(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            if child is not None:
                yield from _with_children((*path, name), child)


def _command(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(("rlweave", *path)))
    usage = " ".join((context.info_name or "", *command.collect_usage_pieces(context)))
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    parts = [f"{'##' if len(path) == 1 else '###'} rlweave {' '.join(path)}", f"```text\n{usage}\n```", _help(command)]
    if options:
        parts.append(table(("option", "value", "default", "meaning"), [_option(each, context) for each in options]))
    return "\n\n".join(parts)


def _help(command: click.Command) -> str:
    """Paragraphs, without click's own marks."""
    paragraphs = (command.help or "").replace("\f", "\n\n").split("\n\n")
    return "\n\n".join(cell(each) for each in paragraphs if each.strip("\b \n"))


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str, str]:
    names = ", ".join(code(each) for each in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else code(option.make_metavar(context))
    default = option.get_default(context, call=False)
    unset = (
        default is None or callable(default) or default == () or option.is_flag or type(default).__name__ == "Sentinel"
    )
    shown = "*required*" if option.required else "" if unset else code(str(default))
    told = plain(option.help or "")
    variable = f" Environment: {code(str(option.envvar))}." if option.envvar else ""
    repeat = " May be repeated." if option.multiple and "repeated" not in told else ""
    return names, value, shown, f"{told}{repeat}{variable}"


def _anchor(path: tuple[str, ...]) -> str:
    return "-".join(("rlweave", *path))
