"""What the packages never do, and what no file of the repository says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.unit.shape.tree import ROOT, Module, calls, files, package_modules

BROAD = {"Exception", "BaseException"}
BOUNDARIES = [  # around user code, around file systems of others, and around a whole stage
    "consumers/rewards/call.py",
    "consumers/scheduler/guarded.py",
    "pipeline/plugins.py",
    "pipeline/stage.py",
    "pipeline/uploads/target.py",
]
CODE_FROM_DATA = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
# Joined here, so that this file does not hold them itself.
REGISTRIES = re.compile(
    "|".join(("pypi" + r"\.", "python" + "hosted", "repo1?" + r"\.maven", r"\s--(?:extra-)?" + "index-url"))
)
MACHINE_PATHS = re.compile("(?<![A-Za-z0-9_.}])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me/")) + r")\b")


def test_no_assert() -> None:
    """`python -O` takes them out."""
    assert _places(ast.Assert) == []


def test_no_broad_handler_but_at_the_boundaries() -> None:
    broad = {
        module.path
        for module in package_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and BROAD & _names(node.type)
    }
    assert sorted(broad) == BOUNDARIES


def test_no_code_from_data() -> None:
    found = [
        _place(module, node)
        for module in package_modules()
        for name, node in calls(module)
        if name in CODE_FROM_DATA or any(_trusts(keyword) for keyword in node.keywords)
    ]
    assert found == []


def test_no_pickle() -> None:
    assert [
        f"{module.path}: {name}" for module in package_modules() for name in _imports(module) if name in PICKLES
    ] == []


def test_nothing_is_left_unfinished() -> None:
    assert [module.path for module in package_modules() if UNFINISHED.search(module.text)] == []


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8", errors="replace") for path in files()}
    assert [path for path, text in texts.items() if REGISTRIES.search(text)] == []
    found = {path: match.group() for path, text in texts.items() if (match := MACHINE_PATHS.search(text))}
    assert found == {}


def _trusts(keyword: ast.keyword) -> bool:
    said = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    return keyword.arg == "trust_remote_code" and not said


def _names(node: ast.expr | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    return {ast.unparse(one) for one in (node.elts if isinstance(node, ast.Tuple) else [node])}


def _imports(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _places(kind: type[ast.stmt]) -> list[str]:
    return [
        _place(module, node) for module in package_modules() for node in ast.walk(module.tree) if isinstance(node, kind)
    ]


def _place(module: Module, node: ast.stmt | ast.expr | ast.ExceptHandler) -> str:
    return f"{module.path}:{node.lineno}"
