"""Values and errors become verdicts; nothing but 0 becomes 0."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from consumers.rewards import verdict
from consumers.rewards.api import Transient


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
