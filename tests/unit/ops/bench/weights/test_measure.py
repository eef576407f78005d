"""Figures from made-up sets: multiples of the goodput measured beside them, and every number that is promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.bench.weights import report
from ops.bench.weights.measure import Measured, steps
from ops.bench.weights.one_set import SetResult
from ops.bench.weights.plan import NEAR, SOURCE, WeightsPlan
from ops.netlab.counters import LinkBytes

SIZE_BYTES = 1_000_000
PROMISED = {
    "ours_over_ideal",
    "single_source_over_ideal",
    "tree_over_ideal",
    "chain_over_ideal",
    "source_copies",
    "slow_link_copies",
    "ours_over_ideal_one_killed",
    "chain_over_ideal_one_killed",
    "ours_over_ideal_source_killed",
    "ours_over_ideal_domain_seed_killed",
    "slow_link_over_ideal",
    "goodput_mbit",
    "rate_mbit",
    "chunk_bytes",
    "num_engines",
    "size_bytes",
    "cpu_busy_max",
}


@pytest.fixture
def measured() -> Measured:
    """Every set takes 3 s, but the plain fetches: 2 s and 1 s, over the slow link 6 s and 5 s."""
    measured = Measured(rate_mbit=200.0)
    taken_s = {"alone": 2.0, "alone_again": 1.0, "alone_slow": 6.0, "alone_slow_again": 5.0}
    for number, step in enumerate(steps(restart_s=1.0)):
        measured.sizes[step.name] = SIZE_BYTES // (2 if step.crosses else 1)
        measured.results[step.name] = SetResult(
            name=step.name,
            seconds={"engine1": 0.5, "engine2": taken_s.get(step.name, 3.0)},
            links=LinkBytes(up={SOURCE: 1_100_000}, down={}, crossed={NEAR: 600_000}),
            served_bytes=1_050_000,
            cpu_busy=0.5 + number / 100,
            cpu_own=0.25,
            crosses=step.crosses,
            victim="",
            notices=(),
        )
    return measured


def test_times_are_multiples_of_the_better_plain_fetch_on_the_same_links(measured: Measured) -> None:
    assert measured.over_ideal("ours") == pytest.approx(3.0)
    assert measured.over_ideal("slow_link") == pytest.approx(3.0 / 5.0)


def test_copies_are_bytes_at_the_link_over_what_travelled(measured: Measured) -> None:
    values = report.values(measured, plan=WeightsPlan())
    assert values["source_copies"] == pytest.approx(1.1)
    assert values["source_copies_served"] == pytest.approx(1.05)
    assert values["slow_link_copies"] == pytest.approx(1.2)


def test_every_promised_number_is_there(measured: Measured) -> None:
    values = report.values(measured, plan=WeightsPlan())
    assert values.keys() >= PROMISED
    assert values["goodput_mbit"] == pytest.approx(8.0)
    assert values["cpu_busy_max"] == pytest.approx(max(result.cpu_busy for result in measured.results.values()))


def test_the_table_has_a_row_for_every_set_but_the_plain_fetches(measured: Measured) -> None:
    text = report.table(measured, shares={"delta_share_1_pct": 1.5}).text()
    assert text.count("copies") >= len(steps(restart_s=1.0)) - 4
    assert "delta share 1 pct" in text


def test_a_lowered_rate_is_said(measured: Measured) -> None:
    measured.rate_mbit = 150.0
    assert "lowered from 200" in report.notes(measured, plan=WeightsPlan())[0]
    measured.rate_mbit = 200.0
    assert "lowered" not in report.notes(measured, plan=WeightsPlan())[0]


def test_processors_that_stay_too_busy_are_said(measured: Measured) -> None:
    assert not any("over 85%" in note for note in report.notes(measured, plan=WeightsPlan()))
    measured.results["tree"] = replace(measured.results["tree"], cpu_busy=0.9)
    assert "over 85% busy at this rate as well (25% by the nodes)" in report.notes(measured, plan=WeightsPlan())[-1]
