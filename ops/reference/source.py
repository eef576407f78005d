"""What the code of the six packages says in calls: raised errors and notices.

Data in: the syntax trees of the installed packages. Data out: `Said`s.
Invariants: only text that stands in the code is taken; what is filled in at run time stands as `{name}`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import ops
from ops.start_checks import PACKAGES


@dataclass(kw_only=True, eq=False)
class Source:
    """One module."""

    path: str  # relative to the parent of the packages, with slashes
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of it."""
        return tuple(ast.walk(self.tree))


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the packages, by path."""
    home = Path(ops.__file__).resolve().parents[1]
    paths = sorted(path for package in PACKAGES for path in (home / package).rglob("*.py"))
    return tuple(
        Source(path=path.relative_to(home).as_posix(), tree=ast.parse(path.read_text(encoding="utf-8")))
        for path in paths
    )


@cache
def calls(source: Source) -> tuple[ast.Call, ...]:
    """Every call of a module."""
    return tuple(node for node in source.nodes if isinstance(node, ast.Call))


@cache
def tables(source: Source) -> Mapping[int, ast.Dict]:
    """The dictionary that a function gave a name before, by the identity of the nodes that use the name."""
    found: dict[int, ast.Dict] = {}
    for function in source.nodes:
        if not isinstance(function, ast.FunctionDef):
            continue
        named = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in named:
                found[id(node)] = named[node.id]
    return found


def text_of(node: ast.expr | None) -> str | None:
    """A text with its gaps named; None where it is not written in the code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [_gap(part) if isinstance(part, ast.FormattedValue) else text_of(part) for part in node.values]
        return "".join(part or "" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None and right is None else f"{left or '{...}'}{right or '{...}'}"
    return None


def keywords(call: ast.Call) -> Mapping[str, ast.expr]:
    """Named arguments."""
    return {each.arg: each.value for each in call.keywords if each.arg is not None}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or an attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return ""


@cache
def error_classes() -> dict[str, tuple[str, str, ast.ClassDef]]:
    """Public subclasses of RlweaveError: name -> (module, first base, node); a name in two modules has the first."""
    known = {"RlweaveError"}
    found: dict[str, tuple[str, str, ast.ClassDef]] = {}
    nodes = [(source, node) for source in sources() for node in source.nodes if isinstance(node, ast.ClassDef)]
    while True:
        new = [
            (source, node, bases[0])
            for source, node in nodes
            if node.name not in found and (bases := [name for base in node.bases if (name := dotted(base)) in known])
        ]
        if not new:
            return {name: entry for name, entry in found.items() if not name.startswith("_")}
        for source, node, base in new:
            known.add(node.name)
            found.setdefault(node.name, (source.path, base, node))


def _gap(node: ast.FormattedValue) -> str:
    """What is filled in, by its last word."""
    return f"{{{_word(node.value) or '...'}}}"


def _word(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        plain = isinstance(node.func, ast.Name) or dotted(node.func).startswith(".")  # str(x), ", ".join(x)
        return _word(node.args[0]) if plain and node.args else _word(node.func)
    if isinstance(node, ast.Subscript):
        return _word(node.value)
    return dotted(node).rpartition(".")[2].strip("_")
