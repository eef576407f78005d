"""Lag is readable records or unknown, never a guess (Case 47)."""

from __future__ import annotations

import pytest

from topics.lag import partition_lag


@pytest.mark.parametrize(
    ("committed", "retained", "lag"),
    [
        (10, (0, 25), 15),
        (25, (0, 25), 0),
        (None, (0, 25), None),  # a group without commits
        (10, None, None),  # brokers away
        (10, (20, 25), 5),  # the log start moved past the committed offset
        (30, (0, 25), None),  # recreated: would be negative
    ],
)
def test_lag(committed: int | None, retained: tuple[int, int] | None, lag: int | None) -> None:
    """Case 47."""
    assert partition_lag("samples", 0, committed=committed, retained=retained).lag_records == lag
