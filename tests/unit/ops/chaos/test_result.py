"""The figures: their names, what makes a run bad, percentiles that leave hangs out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from ops.chaos.judge import Verdict
from ops.chaos.result import ChaosResult, Done, as_json, lines_of, percentile
from ops.chaos.vitals import Series

PROMISED = {"faults", "lost", "announced_losses", "trained_twice", "unaccounted", "hangs", "recovery_p95_s"}
DONE = Done(number=1, kind="kill-peer", details="peer", step=3, held_s=0.1, recovery_s=2.0, stall_s=3.0)


def result() -> ChaosResult:
    done = [DONE, replace(DONE, number=2, recovery_s=4.0), replace(DONE, number=3, kind="redis-flush", recovery_s=1.0)]
    verdict = Verdict(trained=80, audited=100, announced={"samples r/1/0"})
    return ChaosResult(seed=5, brokers=3, ranks=2, planned=3, done=done, verdict=verdict, steps=20, wall_s=60.0)


def test_the_promised_figures_are_there_and_are_numbers() -> None:
    figures = orjson.loads(orjson.dumps(as_json(result())))
    assert set(figures) >= PROMISED
    assert {name: figures[name] for name in PROMISED} == {
        "faults": 3,
        "lost": 0,
        "announced_losses": 1,
        "trained_twice": 0,
        "unaccounted": 0,
        "hangs": 0,
        "recovery_p95_s": 4.0,
    }


def test_announced_losses_alone_break_nothing() -> None:
    assert result().is_good
    assert lines_of(result())[-1] == "every promise was kept"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: one.verdict.lost.add("x"),
        lambda one: one.verdict.twice.add("x"),
        lambda one: one.verdict.unaccounted.add("x"),
        lambda one: one.hangs.append("x"),
        lambda one: one.unbounded.append("x"),
        lambda one: setattr(one, "ended", "x"),
        lambda one: one.done.pop(),
    ],
)
def test_whatever_is_wrong_makes_the_run_bad(spoil: Callable[[ChaosResult], object]) -> None:
    bad = result()
    spoil(bad)
    assert not bad.is_good
    assert lines_of(bad)[-1] == "a promise was broken, or not all was done"


def test_what_was_found_is_told_with_its_name() -> None:
    bad = result()
    bad.verdict.lost.add("missing_sample: r/2/0: why")
    bad.hangs.append("fault 3: nothing moved")
    shown = "\n".join(lines_of(bad))
    assert "lost: missing_sample: r/2/0: why" in shown
    assert "hang: fault 3: nothing moved" in shown


def test_a_hang_is_counted_and_not_timed() -> None:
    hung = result()
    hung.done[1] = replace(hung.done[1], recovery_s=500.0, hang="nothing moved")
    figures = as_json(hung)
    assert figures["recovery_p95_s"] == 2.0
    assert figures["kinds"] == {
        "kill-peer": {
            "count": 2,
            "recovery_p50_s": 2.0,
            "recovery_p95_s": 2.0,
            "stall_p50_s": 3.0,
            "stall_p95_s": 3.0,
            "hangs": 1,
        },
        "redis-flush": {
            "count": 1,
            "recovery_p50_s": 1.0,
            "recovery_p95_s": 1.0,
            "stall_p50_s": 3.0,
            "stall_p95_s": 3.0,
            "hangs": 0,
        },
    }


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.95, 3.0), ([3.0, 1.0, 2.0], 0.5, 2.0), (list(range(100)), 0.95, 95)],
)
def test_percentiles(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


def test_memory_is_told_over_all_lives_of_a_program() -> None:
    one = result()
    one.series = [Series("learner", 1, [0.0], [100.0], [5]), Series("learner", 2, [0.0, 1.0], [90.0, 140.0], [5, 5])]
    assert as_json(one)["rss_mib"] == {"learner": 140.0}
