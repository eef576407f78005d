"""A warning is said once per subject and cause, and again once the subject had worked."""

from __future__ import annotations

import logging

import pytest

from topics.told import Told


def test_a_cause_is_said_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(logging.getLogger("tests.told"))
    with caplog.at_level(logging.WARNING, logger="tests.told"):
        for cause in ("moved", "moved", "slow", "moved"):
            told.warn("a", cause, text=f"a: {cause}")
        told.warn("b", "moved", text="b: moved")
        told.works("a")
        told.warn("a", "moved", text="a: moved again")
    assert caplog.messages == ["a: moved", "a: slow", "b: moved", "a: moved again"]
