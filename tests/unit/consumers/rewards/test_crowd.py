"""Scoring the past pauses while others want the processors, and never for long."""

from __future__ import annotations

import pytest

from consumers.rewards.crowd import LOOK_S, MOST_PAUSE_S, Crowd


class Kernel:
    """What it counts, as the test says."""

    def __init__(self) -> None:
        self.waited: float | None = 100.0

    def __call__(self) -> float | None:
        return self.waited


@pytest.mark.parametrize(("waited_s", "pause_s"), [(0.0, 0.0), (0.05, 0.0), (0.3, 0.3), (40.0, MOST_PAUSE_S)], ids=str)
def test_it_pauses_as_long_as_it_had_to_wait(waited_s: float, pause_s: float) -> None:
    kernel = Kernel()
    crowd = Crowd(10.0, waited=kernel)
    kernel.waited = 100.0 + waited_s
    assert crowd.pause_s(10.0 + LOOK_S / 2) == 0.0, "not looked yet"
    assert crowd.pause_s(10.0 + LOOK_S) == pytest.approx(pause_s)


def test_a_pause_does_not_lead_to_the_next_one() -> None:
    kernel = Kernel()
    crowd = Crowd(0.0, waited=kernel)
    kernel.waited = 100.4
    assert crowd.pause_s(0.5) == pytest.approx(0.4)
    assert crowd.pause_s(0.9 + LOOK_S) == 0.0


def test_where_the_kernel_does_not_count_there_is_no_pause() -> None:
    kernel = Kernel()
    crowd = Crowd(0.0, waited=kernel)
    kernel.waited = None
    assert crowd.pause_s(5.0) == 0.0
    kernel.waited = 300.0
    assert crowd.pause_s(10.0) == 0.0
