"""What is used is declared, and what is declared is used: metrics, settings, environment variables, commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import click
import pytest

import ops.run_file  # noqa: F401 - every section of a run file is defined once this is imported
from ops.cli.main import COMMANDS, cli
from pipeline.metrics import METRICS, MetricSpec
from pipeline.settings import Section
from tests.unit.shape.tree import ROOT, Module, calls, dotted, modules, package_modules

KINDS = {"count": "counter", "gauge": "gauge", "absent": "gauge", "observe": "histogram", "observe_all": "histogram"}
ENVIRONMENT_DOC = "docs/environment.md"
OWN_VARIABLE = re.compile(r"RLWEAVE_[A-Z_]+")


def test_every_metric_used_is_declared_with_that_kind_and_these_labels() -> None:
    declared = {spec.name: spec for spec in METRICS}
    assert len(declared) == len(METRICS)
    used = [(place, node) for module in package_modules() for place, node in _metric_calls(module)]
    assert len(used) > 40, "the calls are not found any more"
    assert [place for place, node in used if not _fits(node, declared.get(_literal(node) or ""))] == []


def test_every_declared_metric_is_used() -> None:
    strings = {text for module in package_modules() for text in _strings_in_use(module)}
    assert sorted({spec.name for spec in METRICS} - strings) == []


def test_every_setting_has_a_description() -> None:
    sections = [section for section in _subclasses(Section) if section.__module__.partition(".")[0] != "tests"]
    assert len(sections) >= 11
    assert [
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description
    ] == []


def test_every_environment_variable_is_documented_and_every_documented_one_is_used() -> None:
    used = {name for module in modules() for name in _variables(module)}
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / ENVIRONMENT_DOC).read_text(), re.MULTILINE))
    assert used == documented


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_resolves_and_every_part_of_it_has_help(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    assert _without_help(command, path=name) == []


def _metric_calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    for name, node in calls(module):
        receiver, _, method = name.rpartition(".")
        if receiver.endswith("metrics") and method in KINDS and _literal(node) is not None:
            yield f"{module.path}:{node.lineno} {_literal(node)}", node


def _literal(node: ast.Call) -> str | None:
    first = node.args[0] if node.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _fits(node: ast.Call, spec: MetricSpec | None) -> bool:
    if spec is None or not isinstance(node.func, ast.Attribute):
        return False
    labels = {keyword.arg for keyword in node.keywords}
    return KINDS[node.func.attr] == spec.kind and (None in labels or labels - {"amount"} == set(spec.labels))


def _strings_in_use(module: Module) -> Iterator[str]:
    """Text constants, without those that declare a metric."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METRICS":
            continue
        yield from (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _subclasses(base: type[Section]) -> Iterator[type[Section]]:
    for one in base.__subclasses__():
        yield one
        yield from _subclasses(one)


def _variables(module: Module) -> Iterator[str]:
    """Names of environment variables: all of ours, and what is read from `os.environ` under a name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OWN_VARIABLE.fullmatch(node.value):
            yield node.value
        if isinstance(node, ast.Subscript) and dotted(node.value) == "os.environ":
            yield from _texts(node.slice)
        if isinstance(node, ast.Compare) and any(dotted(one) == "os.environ" for one in node.comparators):
            yield from _texts(node.left)
    for name, node in calls(module):
        if name in {"os.getenv", "os.environ.get", "os.environ.pop", "os.environ.setdefault"} and node.args:
            yield from _texts(node.args[0])


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _without_help(command: click.Command, *, path: str) -> list[str]:
    missing = [] if command.help else [path]
    missing += [
        f"{path} {parameter.opts[0]}"
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    for name, child in getattr(command, "commands", {}).items():
        missing += _without_help(child, path=f"{path} {name}")
    return missing
