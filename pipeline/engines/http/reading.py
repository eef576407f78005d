"""Typed values out of JSON that somebody else wrote.

Role: the one place where an answer's loose types end; a dialect reads with these and nothing else.
Data in: bytes of an answer. Data out: ints, floats, texts and lists of them.
Invariants: a number that is not finite never comes out; a missing field is an error that names its path.
Failure: `BadAnswer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import orjson

from pipeline.engines.http.exchange import BadAnswer

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
SHOWN_CHARS = 80
# vLLM says this in place of NaN and minus infinity, which JSON does not have.
NOT_A_LOGPROB = -9999.0


def parse(data: bytes) -> Node:
    """The root of an answer.

    Raises:
        BadAnswer: not JSON, or cut short.
    """
    try:
        value: Json = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadAnswer(f"the answer of {len(data)} bytes is not JSON: {error}") from error
    return Node(value=value, path="answer")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A value and where it stands in its answer."""

    value: Json
    path: str

    def get(self, name: str) -> Node:
        """A field; its value is None where it is absent."""
        if not isinstance(self.value, dict):
            raise self._wrong("an object")
        return Node(value=self.value.get(name), path=f"{self.path}.{name}")

    @property
    def absent(self) -> bool:
        """Whether there is nothing, or null."""
        return self.value is None

    def items(self) -> Iterator[Node]:
        """The elements of a list."""
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        return (Node(value=each, path=f"{self.path}[{index}]") for index, each in enumerate(self.value))

    def first(self) -> Node:
        """The first element of a list."""
        for node in self.items():
            return node
        raise self._wrong("a list of at least one")

    def column(self, name: str | int) -> Node:
        """One field, or one place, of every element of a list."""
        rows = cast("list[dict[str | int, Json]]", self.value)
        try:
            return Node(value=[row[name] for row in rows], path=f"{self.path}[*].{name}")
        except (KeyError, TypeError, IndexError) as error:
            raise self._wrong(f"a list whose every element has {name!r}") from error

    def integers(self) -> list[int]:
        """A list of whole numbers."""
        if isinstance(self.value, list) and set(map(type, self.value)) <= {int}:
            return cast("list[int]", self.value)
        return [node.integer() for node in self.items()]

    def logprobs(self) -> list[float]:
        """A list of finite log-probabilities."""
        if isinstance(self.value, list) and set(map(type, self.value)) <= {int, float}:
            values = cast("list[float]", self.value)
            if not values or (min(values) > NOT_A_LOGPROB and all(map(math.isfinite, values))):
                return values
        return [node.logprob() for node in self.items()]

    def values(self) -> Iterator[Node]:
        """The values of an object."""
        if not isinstance(self.value, dict):
            raise self._wrong("an object")
        return (Node(value=each, path=f"{self.path}.{name}") for name, each in self.value.items())

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self._wrong("a text")
        return self.value

    def integer(self) -> int:
        """A whole number."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._wrong("a whole number")
        return self.value

    def number(self) -> float:
        """A finite number."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not math.isfinite(self.value):
            raise self._wrong("a finite number")
        return float(self.value)

    def logprob(self) -> float:
        """A finite log-probability."""
        value = self.number()
        if value <= NOT_A_LOGPROB:
            raise self._wrong("a log-probability; the model's logits were not finite")
        return value

    def _wrong(self, wanted: str) -> BadAnswer:
        seen = repr(self.value)
        shown = seen if len(seen) <= SHOWN_CHARS else f"{seen[:SHOWN_CHARS]}..."
        return BadAnswer(f"{self.path} is {shown}, not {wanted}")
