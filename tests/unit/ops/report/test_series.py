"""Bins over time."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ops.report import plots
from ops.report.plots import MOST_AGES
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


def test_ages_beyond_measure_share_a_bar() -> None:
    counts = Counter({0: 6, 2: 2, MOST_AGES: 1, 2**31 - 1: 1})
    facts = SimpleNamespace(accounts=SimpleNamespace(ages=counts))  # the part that is drawn
    axes = Figure().subplots()
    plots.ages(axes, facts)  # type: ignore[arg-type]
    bars = [each for each in axes.patches if isinstance(each, Rectangle)]
    assert [round(bar.get_height(), 2) for bar in bars] == [0.6, 0, 0.2, *[0] * (MOST_AGES - 3), 0.2]
    assert axes.get_xticklabels()[-1].get_text() == f"{MOST_AGES}+"
