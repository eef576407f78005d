"""Rewards that look at the form of a completion: a regular expression, and sections in tags.

Invariants: a reward of this module says nothing about the task unless it is told to compare with the answer.
Failure: `ValueError` for options that cannot work; a task without the answer that is asked for is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from consumers.rewards.api import Sample, answer


class RegexMatch:
    """1 if the pattern is found in the completion, else 0; with `group`, if that group also equals the answer.

    The last match counts. Expressions that take exponential time on some texts end at `timeout_s` as failures, since
    this reward runs in processes of its own.

    Args:
        pattern: of Python's `re`; `.` matches line ends.
        full: the whole completion must match, white space around it aside.
        group: number of a group to compare with the reference answer; 0: nothing is compared.

    Raises:
        ValueError: no regular expression, or it has no such group.
    """

    name = "regex"
    version = "1"

    def __init__(self, *, pattern: str, full: bool = False, ignore_case: bool = False, group: int = 0) -> None:
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
        try:
            self._pattern = re.compile(pattern, flags)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
        if not 0 <= group <= self._pattern.groups:
            raise ValueError(f"group = {group}: the pattern has {self._pattern.groups}")
        self._full, self._group = full, group

    def score(self, sample: Sample) -> float:
        """1.0 or 0.0."""
        wanted = answer(sample) if self._group else ""
        found = self._last(sample.completion_text.strip())
        if found is None:
            return 0.0
        if not self._group:
            return 1.0
        inside: str | None = found[self._group]
        return float(inside is not None and inside.strip() == wanted)

    def _last(self, text: str) -> re.Match[str] | None:
        if self._full:
            return self._pattern.fullmatch(text)
        last = None
        for last in self._pattern.finditer(text):  # noqa: B007 - the last one is wanted
            pass
        return last


class TagFormat:
    """1 if the completion is made of these sections: each tag opened and closed once, in this order; else 0.

    Args:
        tags: names, for `<think>...</think><answer>...</answer>` the default.
        strict: nothing but white space may stand outside the sections.

    Raises:
        ValueError: no tag, or one twice.
    """

    name = "format"
    version = "1"

    def __init__(self, *, tags: Sequence[str] = ("think", "answer"), strict: bool = True) -> None:
        if not tags or len(set(tags)) != len(tags) or not all(tags):
            raise ValueError(f"tags = {list(tags)}: at least one is needed, each once")
        self._tags = tuple(tags)
        self._strict = strict

    def score(self, sample: Sample) -> float:
        """1.0 or 0.0."""
        text, outside = sample.completion_text, ""
        if any(text.count(mark) != 1 for tag in self._tags for mark in (f"<{tag}>", f"</{tag}>")):
            return 0.0
        at = 0
        for tag in self._tags:
            begin, end = text.find(f"<{tag}>"), text.find(f"</{tag}>")
            if not at <= begin < end:
                return 0.0
            outside += text[at:begin]
            at = end + len(f"</{tag}>")
        outside += text[at:]
        return float(not self._strict or not outside.strip())
