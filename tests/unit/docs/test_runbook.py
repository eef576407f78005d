"""The runbook is complete: what the code can say is in it, and it names nothing that the code cannot say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pipeline.exit_codes import RESTART_IS_FUTILE, ExitCode
from pipeline.metrics import METRICS
from schemas.reasons import Reason
from tests.unit.shape.tree import Function, Module, dotted, functions, package_modules

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "runbook.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([A-Za-z_]+)`", PAGE))
PASSED_ON = ("name", "notice.name")  # a caller's word, looked for where it comes from


def test_every_notice_is_in_the_runbook() -> None:
    assert set(notices()) - WORDS == set()


def test_every_notice_of_the_runbook_is_in_the_code() -> None:
    part = PAGE.split("## Notices")[1].split("## Waves and versions")[0]
    first = [row.split("|")[1] for row in part.splitlines() if row.startswith("| `")]
    named = {word for cell in first for word in re.findall(r"`([a-z_]+)`", cell)}
    assert named - set(notices()) == set()


def test_every_exit_code_has_a_row_that_says_whether_it_is_final() -> None:
    rows = {int(found[1]): found[0] for found in re.finditer(r"^\| (\d+) \| `\w+` \|.*$", PAGE, re.MULTILINE)}
    assert set(rows) == {int(code) for code in ExitCode}
    for code in ExitCode:
        assert f"`{code.name}`" in rows[code]
        assert ("*Final*" in rows[code]) == (code in RESTART_IS_FUTILE), code


def test_every_error_has_a_row() -> None:
    assert {name for name in errors() if name != "RlweaveError" and not name.startswith("_")} - WORDS == set()


def test_every_metric_and_every_reason_is_in_the_runbook() -> None:
    assert {spec.name for spec in METRICS} - WORDS == set()
    assert {reason.value for reason in Reason} - WORDS == set()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        other = page if file == "" else (page.parent / file)
        assert other.exists(), f"{page.name}: {target}"
        if anchor:
            text = re.sub(r"^```.*?^```", "", other.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page.name}: {target}"


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower().replace("`", "")).replace(" ", "-")


@cache
def notices() -> frozenset[str]:
    """Every name that a notice can have."""
    return frozenset(name for function in functions() for name in _notices(function))


def _notices(function: Function) -> Iterator[str]:
    tables = dict(_tables(function.module))
    own = [each for each in ast.walk(function.node) if isinstance(each, ast.Call)]
    for call in own:
        called = dotted(call.func) or ""
        if not call.args or not called.endswith((".notice", "._notice", "._failed")):
            continue
        said = call.args[0]
        if isinstance(said, ast.Constant) and isinstance(said.value, str):
            yield said.value
        elif isinstance(said, ast.Subscript) and dotted(said.value) in tables:
            yield from tables[str(dotted(said.value))]
        elif called.endswith("notice"):
            assert dotted(said) in PASSED_ON, f"{function.place}: what it says cannot be found out"


def _tables(module: Module) -> Iterator[tuple[str, list[str]]]:
    """Dictionaries of a module whose values are texts."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            values = [each.value for each in node.value.values if isinstance(each, ast.Constant)]
            yield node.targets[0].id, [value for value in values if isinstance(value, str)]


def errors() -> set[str]:
    """Every class that is an error of ours, by the names of the bases."""
    classes = {
        node.name: {ast.unparse(base) for base in node.bases}
        for module in package_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"RlweaveError"}
    while new := {name for name, bases in classes.items() if bases & found} - found:
        found |= new
    return found
