"""What a stage that was started by hand says on its terminal."""

from __future__ import annotations

import logging

from ops.run_stage import is_not_the_report


def line(**extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": "reward sum: 3 samples scored", **extra})


def test_the_result_of_scoring_the_past_is_not_logged_besides() -> None:
    assert not is_not_the_report(line(event="rescored"))
    assert is_not_the_report(line(event="breaker_opened"))
    assert is_not_the_report(line())
