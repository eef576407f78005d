"""Which lines of a decoder were run.

Role: the measure of coverage, and what guides the plain fuzzer.
Data in: functions and classes. Data out: their lines, and those that a call ran.
Invariants: only code of the functions given is traced; everything else runs at nearly its usual speed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias, TypeVar

Line: TypeAlias = tuple[str, int]  # file, number
_Trace: TypeAlias = Callable[[FrameType, str, Any], "_Trace | None"]
T = TypeVar("T")


class LineTracer:
    """The lines of `covered`, and which of them ran under `run`."""

    def __init__(self, covered: tuple[object, ...]) -> None:
        codes = [code for each in covered for code in _codes_of(each)]
        self._codes = frozenset(codes)
        self.lines: frozenset[Line] = frozenset(line for code in codes for line in _lines_of(code))
        self.seen: set[Line] = set()

    @property
    def share(self) -> float:
        """Of the lines, those that ran."""
        return len(self.seen & self.lines) / len(self.lines)

    @property
    def missed(self) -> list[Line]:
        """Lines that never ran, in order."""
        return sorted(self.lines - self.seen)

    def run(self, call: Callable[[], T]) -> T:
        """Call and note the lines."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> _Trace | None:
        if frame.f_code not in self._codes:
            return None
        seen, file = self.seen, frame.f_code.co_filename

        def note(inner: FrameType, kind: str, _: object) -> _Trace:
            if kind == "line":
                seen.add((file, inner.f_lineno))
            return note

        return note


def _codes_of(covered: object) -> Iterator[CodeType]:
    """Code of a function or of all methods of a class, with what is nested in it."""
    if isinstance(covered, type):
        for value in vars(covered).values():
            inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(inner, FunctionType) and inner.__code__.co_filename != "<string>":  # written by dataclass
                yield from _nested(inner.__code__)
        return
    bare = getattr(covered, "__func__", covered)
    plain = getattr(bare, "__wrapped__", bare)
    if not isinstance(plain, FunctionType):
        raise TypeError(f"{covered!r} is no function and no class")
    yield from _nested(plain.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _lines_of(code: CodeType) -> Iterator[Line]:
    numbers = {number for _, _, number in code.co_lines() if number is not None}
    if len(numbers) > 1 and code.co_name != "<listcomp>":
        numbers.discard(code.co_firstlineno)  # of `def`
    yield from ((code.co_filename, number) for number in numbers)
