"""Files, functions and signatures stay small."""

from __future__ import annotations

import statistics

from tests.unit.shape.tree import Function, functions, modules

FILE_LINES = 350
FUNCTION_LINES = 60
P90_LINES = 40
MEDIAN_LINES = 10
POSITIONAL = 2
PARAMETERS = 8


def test_no_file_is_long() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in modules()}
    assert {path: length for path, length in lengths.items() if length > FILE_LINES} == {}


def test_no_function_is_long_and_most_are_short() -> None:
    lengths = sorted(function.num_lines for function in functions())
    assert [one.place for one in functions() if one.num_lines > FUNCTION_LINES] == []
    assert lengths[int(0.9 * len(lengths))] < P90_LINES
    assert statistics.median(lengths) < MEDIAN_LINES


def test_no_signature_is_long() -> None:
    # `__exit__` and the like have the signature that Python gives them.
    own = [one for one in functions() if not one.node.name.startswith("__") or one.node.name == "__init__"]
    assert [f"{one.place}: {_positional(one)}" for one in own if _positional(one) > POSITIONAL] == []
    assert [one.place for one in own if _positional(one) + len(one.node.args.kwonlyargs) > PARAMETERS] == []


def _positional(function: Function) -> int:
    arguments = function.node.args
    bound = function.owner is not None and "staticmethod" not in function.decorators
    return len(arguments.posonlyargs) + len(arguments.args) - bound
