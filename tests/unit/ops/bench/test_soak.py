"""What is judged of a soak: growth between thirds of a life, rates, and what the table says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ops.bench.result import Noise
from ops.bench.soak import BenchError, Flow, Growth, SoakSize, soak_result, thirds
from ops.chaos.vitals import Series

_MINUTES = 30


def _series(name: str, *, rss_mib: Callable[[int], float], num_files: Callable[[int], int] = lambda _: 30) -> Series:
    """One point a minute."""
    at = range(_MINUTES)
    return Series(
        name=name,
        pid=1,
        at_s=[60.0 * each for each in at],
        rss_mib=[rss_mib(each) for each in at],
        num_files=[num_files(each) for each in at],
    )


def _flow() -> Flow:
    at = range(_MINUTES)
    return Flow(
        at_s=[60.0 * each for each in at], num_samples=[600 * each for each in at], lag_records=[100 for _ in at]
    )


def test_a_start_is_no_growth() -> None:
    growth = Growth.of(_series("learner", rss_mib=lambda minute: 100.0 + 50 * min(minute, 8)))
    assert growth.slope_mib_h == 0
    assert growth.is_flat


def test_a_leak_is_given_in_mib_an_hour() -> None:
    growth = Growth.of(_series("learner", rss_mib=lambda minute: 100.0 + 2 * minute))
    assert growth.slope_mib_h == pytest.approx(120)
    assert not growth.is_flat


def test_files_that_are_never_closed_are_growth() -> None:
    growth = Growth.of(_series("peer", rss_mib=lambda _: 100.0, num_files=lambda minute: 30 + minute))
    assert growth.grown_files == pytest.approx(10)
    assert not growth.is_flat


@pytest.mark.parametrize("num_looks", [0, 1, 2])
def test_too_few_looks_are_named(num_looks: int) -> None:
    flow = Flow(at_s=[0.0, 1.0][:num_looks], num_samples=[0, 9][:num_looks], lag_records=[1, 1][:num_looks])
    with pytest.raises(BenchError, match=f"at {num_looks} looks only, 3 are needed"):
        soak_result(SoakSize.quick(), flow, series=[], balanced=True, noise=Noise())


def test_rates_are_of_the_part_asked_for() -> None:
    flow = Flow(at_s=[0.0, 10.0, 20.0, 30.0], num_samples=[0, 100, 200, 500], lag_records=[0, 0, 0, 0])
    assert flow.rate(slice(0, 3)) == 10
    assert flow.rate(slice(2, None)) == 30
    assert flow.rate(slice(3, None)) == 0
    assert thirds(30) == (slice(10, 20), slice(20, None))


def test_what_grows_and_what_was_started_again_is_told() -> None:
    series = [
        _series("learner", rss_mib=lambda minute: 100.0 + 2 * minute),
        _series("rollout-0", rss_mib=lambda _: 500.0),
        _series("rollout-0", rss_mib=lambda _: 500.0),
        _series("server:broker-1", rss_mib=lambda minute: 300.0 + 10 * minute),
    ]
    found = soak_result(SoakSize(), _flow(), series=series, balanced=False, noise=Noise())
    assert found.values["soak_not_flat"] == 1
    assert found.values["soak_restarts"] == 1
    assert found.values["soak_samples_per_s"] == 10
    assert found.values["soak_lag_last_over_second_third"] == 1
    assert found.values["learner_slope_mib_h"] == 120
    assert found.values["broker_1_slope_mib_h"] == 600
    text = found.text()
    assert "GROWS" in next(line for line in text.splitlines() if line.startswith("learner"))
    assert "GROWS" not in next(line for line in text.splitlines() if line.startswith("server:broker-1"))
    assert "NOT BALANCED" in text
