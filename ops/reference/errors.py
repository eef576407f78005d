"""The page of errors: every error of ours, the code a process ends with, what it says and what it advises.

Data in: the classes, the places that make them. Data out: Markdown.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ops.reference.marks import code, first_line, page, table
from ops.reference.source import calls, dotted, error_classes, keywords, sources, text_of
from pipeline.exit_codes import RESTART_IS_FUTILE, ExitCode, exit_code_for
from schemas import errors

_INTRO = """
An error prints `error:` (what was seen, what is allowed, what follows) and `hint:` (what to do). `{name}` stands for
what is filled in. When to meet which, and what else to look at: [runbook](../runbook.md#errors)."""


def errors_page() -> str:
    """The page."""
    classes, said = error_classes(), _messages()
    bases = {name: base for name, (_, base, _) in classes.items()}
    names = sorted(classes)
    overview = [
        (f"[{code(name)}](#{name.lower()})", _exit_code(name, bases), first_line(_doc(classes[name][2])))
        for name in names
    ]
    parts = [
        _error(name, base=classes[name][1], node=classes[name][2], rows=sorted(said.get(name, ()))) for name in names
    ]
    codes = table(
        ("code", "name", "started again by `rlweave up`"),
        [
            (str(int(each)), code(each.name), "no" if each in RESTART_IS_FUTILE or each == 0 else "yes")
            for each in ExitCode
        ],
    )
    return page("Errors", _INTRO, table(("error", "exit code", "means"), overview), "## Exit codes", codes, *parts)


def _exit_code(name: str, bases: Mapping[str, str]) -> str:
    """The code a process ends with: that of the nearest class of `schemas.errors`."""
    while not hasattr(errors, name):
        name = bases[name]
    kind = getattr(errors, name)
    found = exit_code_for(kind.__new__(kind))
    return f"{int(found)} {code(found.name)}"


def _doc(node: ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _error(name: str, *, base: str, node: ast.ClassDef, rows: list[tuple[str, str]]) -> str:
    kind = "" if base == "RlweaveError" else f" A kind of {code(base)}."
    shown = [(message.rstrip(), hint) for message, hint in rows]
    parts = [f"## {name}", f"{first_line(_doc(node))}{kind}"]
    if shown:
        parts.append(table(("says", "hint"), shown))
    return "\n\n".join(parts)


def _messages() -> dict[str, set[tuple[str, str]]]:
    """Messages and hints of every error, from the calls that make one."""
    known = error_classes()
    found: dict[str, set[tuple[str, str]]] = {}
    for source in sources():
        for call in calls(source):
            name = dotted(call.func).rpartition(".")[2]
            message = text_of(call.args[0]) if call.args else None
            if name in known and message:
                hint = text_of(keywords(call).get("hint")) or ""
                found.setdefault(name, set()).add((message, hint))
    return found
