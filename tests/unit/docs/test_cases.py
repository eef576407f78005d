"""The page of cases is whole: every number has a row, every test it names exists, every test that says so is named."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
ROWS = re.findall(
    r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "cases.md").read_text("utf-8"), re.MULTILINE
)
NUMBERS = (6, 7, 8, 11, 13, 15, 18, 20, 21, 22, 25, 27, 28, 30, 33, 34, 36, 37, 40, 41, 43, 45, 46, 47)
SAYS = re.compile(r"\bCase (\d+)\b")


def named(row: tuple[str, ...]) -> set[str]:
    return set(re.findall(r"`([^`]+)`", row[3]))


@cache
def docstrings(path: Path) -> dict[str, str]:
    """Of every test of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {node.name: ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_")}


def test_every_case_has_a_row_with_tests() -> None:
    assert tuple(int(row[0]) for row in ROWS) == NUMBERS
    assert all(named(row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"case {row[0]}")
def test_the_tests_of_a_row_exist_and_say_which_case_they_hold(row: tuple[str, ...]) -> None:
    for place in named(row):
        path, _, name = place.partition("::")
        assert (TESTS / path).is_file(), place
        assert name in docstrings(TESTS / path), place
        assert row[0] in SAYS.findall(docstrings(TESTS / path)[name]), f"{place} does not say Case {row[0]}"


def test_every_test_that_says_a_case_is_in_its_row() -> None:
    rows = {row[0]: named(row) for row in ROWS}
    lacking = [
        f"{path.relative_to(TESTS)}::{name} says Case {number}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name, said in docstrings(path).items()
        for number in SAYS.findall(said)
        if f"{path.relative_to(TESTS)}::{name}" not in rows.get(number, set())
    ]
    assert lacking == []


def test_cases_are_said_in_one_wording() -> None:
    other = re.compile(r"\b(?:cases?|[Rr]ows?|Cases) \d+\b")
    own = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}: {said}"
        for path in sorted(TESTS.rglob("*.py"))
        if path != own
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        for said in other.findall(ast.get_docstring(node) or "")
    ]
    assert found == []
