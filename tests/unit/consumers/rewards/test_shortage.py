"""How many calls a second may hang before the others wait for them, in rates and in words."""

from __future__ import annotations

import pytest

from consumers.rewards.pool import Held
from consumers.rewards.shortage import WINDOW_S, Shortage


def looked(*looks: tuple[float, int], timeout_s: float = 2.0, most: int = 20) -> Shortage:
    """After looks at (time, calls held ever)."""
    shortage = Shortage(0.0, timeout_s=timeout_s)
    for now_s, num_ever in looks:
        shortage.add(Held(num=17, num_ever=num_ever, most=most, is_short=True), now_s=now_s)
    return shortage


def test_the_rate_is_of_lately_only() -> None:
    shortage = looked((10.0, 10), (20.0, 20), (30.0, 20), (40.0, 20), (50.0, 26))
    assert shortage.held_per_s == pytest.approx(6 / WINDOW_S)
    assert shortage.num_ever == 26


def test_the_first_call_of_all_is_no_rate_of_thousands() -> None:
    assert looked((0.001, 1)).held_per_s == 1.0


def test_each_process_can_have_a_call_per_time_limit() -> None:
    assert looked((1.0, 1)).most_per_s == 10.0


def test_below_what_can_be_nothing_is_to_be_changed() -> None:
    assert looked((10.0, 20)).text() == (
        "samples wait, as 17 of 20 processes have a call that takes much longer than others; "
        "2 such calls a second came lately, 10 can at most with timeout_s = 2"
    )


def test_above_it_the_limit_and_the_number_of_processes_are_named_that_are_enough() -> None:
    text = looked((10.0, 25), timeout_s=12.0).text()
    assert text.endswith(
        "2.5 such calls a second came lately, 1.7 can at most with timeout_s = 12: "
        "the others wait for these until timeout_s is 8 or held_workers 10 more"
    )
