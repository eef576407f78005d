"""The repository as the tests of its shape see it: files, syntax trees, functions, calls."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ops.start_checks import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True, eq=False)
class Module:
    """One Python file."""

    path: str  # relative to the repository, with slashes
    text: str
    tree: ast.Module

    @property
    def in_packages(self) -> bool:
        return self.path.partition("/")[0] in PACKAGES


@dataclass(frozen=True, kw_only=True)
class Function:
    """One function or method, nested ones included."""

    module: Module
    node: AnyFunction
    owner: ast.ClassDef | None  # the class it is a method of
    inside: tuple[str, ...]  # names around it, outermost first
    nested: bool  # inside another function

    @property
    def name(self) -> str:
        return ".".join((*self.inside, self.node.name))

    @property
    def place(self) -> str:
        return f"{self.module.path}:{self.node.lineno} {self.name}"

    @property
    def num_lines(self) -> int:
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def decorators(self) -> set[str]:
        """Last part of the name of each decorator."""
        plain = (one.func if isinstance(one, ast.Call) else one for one in self.node.decorator_list)
        return {ast.unparse(one).rpartition(".")[2] for one in plain}


@cache
def files() -> tuple[str, ...]:
    """Files that git tracks or would add, relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(sorted({name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}))


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the repository."""
    found = []
    for path in files():
        if path.endswith(".py"):
            text = (ROOT / path).read_text(encoding="utf-8")
            found.append(Module(path=path, text=text, tree=ast.parse(text, filename=path)))
    return tuple(found)


def package_modules() -> tuple[Module, ...]:
    """Those of the shipped packages."""
    return tuple(module for module in modules() if module.in_packages)


@cache
def functions() -> tuple[Function, ...]:
    """Every function of the shipped packages."""
    return tuple(one for module in package_modules() for one in _functions(module, module.tree, owner=None, inside=()))


@cache
def calls(module: Module) -> tuple[tuple[str, ast.Call], ...]:
    """Every call with the dotted name of what is called; calls of anything else are left out."""
    nodes = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    return tuple((name, node) for node in nodes if (name := dotted(node.func)) is not None)


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute or a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def _functions(
    module: Module, node: ast.AST, *, owner: ast.ClassDef | None, inside: tuple[str, ...], nested: bool = False
) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, AnyFunction):
            yield Function(module=module, node=child, owner=owner, inside=inside, nested=nested)
            yield from _functions(module, child, owner=None, inside=(*inside, child.name), nested=True)
        elif isinstance(child, ast.ClassDef):
            yield from _functions(module, child, owner=child, inside=(*inside, child.name), nested=nested)
        else:
            yield from _functions(module, child, owner=owner, inside=inside, nested=nested)
