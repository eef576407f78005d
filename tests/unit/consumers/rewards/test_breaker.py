"""The breaker's states."""

from __future__ import annotations

from consumers.rewards.breaker import Breaker, BreakerState
from consumers.rewards.settings import RewardSettings

SETTINGS = RewardSettings(plugin="x", breaker_failures=0.5, breaker_window=4, breaker_pause_s=10.0)


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(SETTINGS)
    changes = [breaker.add(failed=True, now_s=at_s) for _ in range(4)]
    assert changes == [False, False, False, True]
    return breaker


def test_half_of_the_window_is_not_above_the_limit() -> None:
    breaker = Breaker(SETTINGS)
    for failed in (True, False) * 10:
        breaker.add(failed=failed, now_s=0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    assert breaker.may_take(7, now_s=0.0) == 7


def test_open_takes_nothing_until_the_pause_ends_then_one() -> None:
    breaker = opened()
    assert breaker.may_take(5, now_s=9.9) == 0
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert breaker.may_take(5, now_s=10.0) == 1
    breaker.taken()
    assert breaker.may_take(5, now_s=10.0) == 0


def test_a_good_probe_closes_and_forgets() -> None:
    breaker = opened()
    breaker.taken()
    assert breaker.add(failed=False, now_s=11.0)
    assert breaker.state(11.0) is BreakerState.CLOSED
    assert breaker.failure_share == 0.0


def test_a_bad_probe_opens_again() -> None:
    breaker = opened()
    breaker.taken()
    assert not breaker.add(failed=True, now_s=11.0)
    assert breaker.state(20.9) is BreakerState.OPEN
    assert breaker.state(21.0) is BreakerState.HALF_OPEN


def test_samples_from_before_say_nothing_about_the_probe() -> None:
    breaker = opened()
    breaker.taken()
    assert not breaker.add(failed=False, now_s=10.5, is_probe=False)
    assert breaker.state(10.5) is BreakerState.HALF_OPEN
    assert breaker.may_take(1, now_s=10.5) == 0


def test_a_probe_given_back_lets_another_through() -> None:
    breaker = opened()
    breaker.taken()
    breaker.probe_given_back()
    assert breaker.may_take(3, now_s=10.0) == 1
