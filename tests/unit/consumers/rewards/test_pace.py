"""Rate, time and failure share of a scorer, lately."""

from __future__ import annotations

from consumers.rewards.pace import Pace, PaceMeter


def test_each_look_is_about_the_time_since_the_last_one() -> None:
    meter = PaceMeter(10.0)
    for failed in (False, False, False, True):
        meter.add(failed=failed, duration_ms=50.0)
    assert meter.look(12.0) == Pace(samples_per_s=2.0, mean_s=0.05, failure_share=0.25)
    meter.add(failed=False, duration_ms=10.0)
    assert meter.look(13.0) == Pace(samples_per_s=1.0, mean_s=0.01, failure_share=0.0)


def test_without_a_verdict_the_rate_is_0_and_the_rest_stays() -> None:
    meter = PaceMeter(0.0)
    meter.add(failed=True, duration_ms=1000.0)
    meter.look(1.0)
    assert meter.look(2.0) == Pace(samples_per_s=0.0, mean_s=1.0, failure_share=1.0)
    assert meter.look(2.0).failure_share == 1.0
