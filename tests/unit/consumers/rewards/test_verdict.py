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


def test_an_error_is_named_and_bounded() -> None:
    assert verdict.of_error(ValueError("bad\n  line"), num_retries=0).failure == "ValueError: bad line"
    assert verdict.of_error(KeyError(), num_retries=0).failure == "KeyError"
    long = verdict.of_error(ValueError("x" * 10_000), num_retries=3).failure
    assert long is not None
    assert len(long) <= verdict.MAX_FAILURE_CHARS
    assert long.endswith("(after 3 retries)")


@pytest.mark.parametrize("error", [Transient(), ConnectionResetError(), TimeoutError(), OSError()])
def test_transient(error: Exception) -> None:
    assert verdict.is_transient(error)


@pytest.mark.parametrize("error", [ValueError(), FileNotFoundError(), PermissionError(), SystemExit()])
def test_permanent(error: BaseException) -> None:
    assert not verdict.is_transient(error)
