"""Bins over time."""

from __future__ import annotations

from ops.report.series import MAX_BINS, Bins


def test_widening_keeps_the_sum_and_the_limit() -> None:
    bins = Bins()
    for second in range(10 * MAX_BINS):
        bins.add(second, 1.0)
    assert len(bins.sums) <= MAX_BINS
    assert sum(bins.sums) == 10 * MAX_BINS
    assert bins.width_s == 16.0


def test_times_before_the_start_clamp_to_it() -> None:
    bins = Bins()
    bins.add(-5.0, 3.0)
    assert bins.means() == ([0.5], [3.0])
