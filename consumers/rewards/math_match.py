"""Mathematical equality of answers, by the `math-verify` package (extra `math`).

Role: one adapter over an untyped library. It parses LaTeX and plain expressions and compares them with sympy.
Invariants: it runs in processes of its own, which end at `timeout_s`: sympy may compute for ever, and the library's own
time limits use signals, so they are off.
Failure: `ImportError` without the extra; a reference answer that cannot be read is a failure of the sample.
"""

from __future__ import annotations

import importlib
import logging
from importlib import metadata
from typing import Protocol, cast

from consumers.rewards.api import Sample, answer


class _Library(Protocol):
    """What is used of `math_verify`."""

    def parse(self, text: str, *, parsing_timeout: int | None) -> list[object]: ...
    def verify(self, gold: list[object], target: list[object], *, timeout_seconds: int | None) -> bool: ...


class MathVerify:
    """1 if the completion's last expression equals the reference answer mathematically, else 0."""

    name = "math_verify"

    def __init__(self) -> None:
        self._library = cast("_Library", importlib.import_module("math_verify"))
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its time limits are off
        self.version = f"1+{metadata.version('math-verify')}"

    def score(self, sample: Sample) -> float:
        """1.0 or 0.0.

        Raises:
            ValueError: the reference answer holds no expression.
        """
        reference = answer(sample)
        gold = self._parse(reference) or self._parse(f"${reference}$")
        if not gold:
            raise ValueError(f"the reference answer {reference!r:.80} holds no mathematical expression")
        found = self._parse(sample.completion_text)
        return float(bool(found) and self._library.verify(gold, found, timeout_seconds=None))

    def _parse(self, text: str) -> list[object]:
        """What is read in a text; nothing for what cannot be read, where the library gives the text again."""
        found = self._library.parse(text, parsing_timeout=None)
        return found if any(not isinstance(each, str) for each in found) else []
