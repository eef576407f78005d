"""Bins over time."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from matplotlib.figure import Figure

from ops.report import plots
from ops.report.activity import Activity
from ops.report.plots import MOST_AGES
from ops.report.series import MAX_BINS, Bins
from pipeline.history import Lineages
from schemas.records import StageEvent


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


def test_a_phase_that_is_longer_than_the_axis_is_put_at_its_beginning() -> None:
    activity = Activity(Lineages())
    for seq, (kind, at_s) in enumerate((("phase_began", 0.0), ("phase_ended", 2.0**40))):
        activity.add(
            StageEvent(
                run="r",
                stage="learner",
                instance="learner-h-1-aa",
                kind=kind,
                name="waiting_for_data",
                seq=seq,
                monotonic_s=at_s,
                unix_ms=1_000_000 + seq * 5_000,
            )
        )
    assert activity.waiting["learner"].sums == [2.0**40 - 4.0, 1.0, 1.0, 1.0, 1.0]


def test_ages_beyond_measure_share_a_bar() -> None:
    counts = Counter({0: 6, 2: 2, MOST_AGES: 1, 2**31 - 1: 1})
    facts = SimpleNamespace(accounts=SimpleNamespace(ages=counts))  # the part that is drawn
    axes = Figure().subplots()
    plots.ages(axes, facts)  # type: ignore[arg-type]
    assert [round(bar.get_height(), 2) for bar in axes.patches] == [0.6, 0, 0.2, *[0] * (MOST_AGES - 3), 0.2]
    assert axes.get_xticklabels()[-1].get_text() == f"{MOST_AGES}+"
