"""Every module, public class and public function says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.unit.shape.tree import Function, functions, modules, package_modules

SAYS_IT_ALL = {"Slot.alive"}  # nothing to add to the name


def test_every_module_says_its_role() -> None:
    assert [module.path for module in modules() if not ast.get_docstring(module.tree)] == []


def test_every_public_class_has_a_docstring() -> None:
    assert [
        f"{module.path} {node.name}"
        for module in package_modules()
        for node in _classes(module.tree)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ] == []


def test_every_public_function_has_a_docstring() -> None:
    """A method may leave it to the protocol it implements."""
    undocumented = [one for one in functions() if _is_public(one) and not ast.get_docstring(one.node)]
    undocumented = [one for one in undocumented if one.name not in SAYS_IT_ALL]
    assert [
        one.place
        for one in undocumented
        if one.owner is None or _is_protocol(one.owner) or one.node.name not in _of_protocols()
    ] == []


def _is_public(function: Function) -> bool:
    names = (*function.inside, function.node.name)
    return (
        not function.nested
        and not any(name.startswith("_") for name in names)
        and "overload" not in function.decorators
    )


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


@cache
def _of_protocols() -> frozenset[str]:
    return frozenset(
        one.node.name
        for one in functions()
        if one.owner is not None and _is_protocol(one.owner) and ast.get_docstring(one.node)
    )
