"""Values and errors become verdicts; nothing but 0 becomes 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import overload

import numpy as np
import pytest

from consumers.rewards import verdict
from consumers.rewards.api import Transient
from consumers.rewards.call import call_now, call_within
from schemas.records import Sample
from tests.unit.consumers.rewards.helpers import sample


@pytest.mark.parametrize(("raw", "value"), [(0, 0.0), (1.5, 1.5), (Fraction(1, 2), 0.5), (np.float32(0.5), 0.5)])
def test_numbers(raw: object, value: float) -> None:
    assert verdict.of_value(raw) == verdict.Verdict(value=value)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (float("nan"), "non_finite"),
        (float("-inf"), "non_finite"),
        (10**400, "non_finite"),
        (None, "not_a_number"),
        (True, "not_a_number"),
        ("1", "not_a_number"),
        (1j, "not_a_number"),
        (np.bool_(True), "not_a_number"),
    ],
)
def test_what_is_no_number_is_a_failure(raw: object, word: str) -> None:
    found = verdict.of_value(raw)
    assert found.value is None
    assert found.failure is not None
    assert found.failure.split(":")[0] == word


def failure_of(error: BaseException, *, num_retries: int = 0) -> str:
    failure = verdict.of_trouble(verdict.of_error(error), num_retries=num_retries).failure
    assert failure is not None
    return failure


def test_an_error_is_named_and_bounded() -> None:
    assert failure_of(ValueError("bad\n  line")) == "ValueError: bad line"
    assert failure_of(KeyError()) == "KeyError"
    long = failure_of(ValueError("x" * 10_000), num_retries=3)
    assert len(long) <= verdict.MAX_FAILURE_CHARS
    assert long.endswith("(after 3 retries)")


def test_half_a_character_in_an_error_does_not_stop_the_record() -> None:
    assert failure_of(ValueError("\ud83d")) == "ValueError: ?"


@pytest.mark.parametrize("error", [Transient(), ConnectionResetError(), TimeoutError(), OSError()])
def test_transient(error: Exception) -> None:
    assert verdict.of_error(error).kind == "transient"


@pytest.mark.parametrize("error", [ValueError(), FileNotFoundError(), PermissionError(), SystemExit()])
def test_permanent(error: BaseException) -> None:
    assert verdict.of_error(error).kind == "error"


class Unprintable(Exception):
    """Neither its text nor its form can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise SystemExit("no form")


def raises(_: Sequence[Sample]) -> Sequence[object]:
    raise Unprintable


class Odd(Sequence[object]):
    """Its length is code that fails."""

    def __len__(self) -> int:
        raise SystemExit("no length")

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        raise IndexError


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (raises, "Unprintable: (its text cannot be had)"),
        (lambda _: [[Unprintable()]], "SystemExit: no form"),
        (lambda _: Odd(), "SystemExit: no length"),
    ],
    ids=["raised", "returned", "length"],
)
def test_what_a_plug_in_gives_is_looked_at_within_its_call(
    call: Callable[[Sequence[Sample]], Sequence[object]], said: str
) -> None:
    async def awaited(samples: Sequence[Sample]) -> Sequence[object]:
        return call(samples)

    for answer in (call_now(call, [sample()]), asyncio.run(call_within(awaited, [sample()], limit_s=60.0))):
        assert answer.trouble is not None
        assert answer.trouble.said == said
