"""Bounded memory and files: what is a finding, and what is no leak."""

from __future__ import annotations

import os
from pathlib import Path

from ops.chaos.settings import Limits
from ops.chaos.vitals import Series, Vitals, note_series, unbounded

LIMITS = Limits(rss_mib=500, server_rss_mib=900, slope_mib_min=20, num_files=10)


def series(name: str, *, minutes: int, rss_mib: float = 100.0, slope: float = 0.0, files_min: float = 0.0) -> Series:
    seconds = [float(second) for second in range(minutes * 60)]
    return Series(
        name=name,
        pid=1,
        at_s=seconds,
        rss_mib=[rss_mib + slope * second / 60 for second in seconds],
        num_files=[round(20 + files_min * second / 60) for second in seconds],
    )


def test_a_steady_process_is_no_finding() -> None:
    assert unbounded([series("learner", minutes=10)], limits=LIMITS) == []


def test_too_much_memory_is_a_finding_and_servers_have_a_limit_of_their_own() -> None:
    found = unbounded(
        [series("learner", minutes=1, rss_mib=600), series("server:broker-1", minutes=1, rss_mib=600)], limits=LIMITS
    )
    assert found == ["learner (pid 1) took 600 MiB, the limit is 500"]


def test_growth_of_a_settled_process_is_a_finding() -> None:
    found = unbounded([series("rollout-0", minutes=8, slope=30)], limits=LIMITS)
    assert found == ["rollout-0 (pid 1) grew by 30.0 MiB a minute, the limit is 20"]


def test_a_server_may_take_its_heap_bit_by_bit() -> None:
    assert unbounded([series("server:broker-1", minutes=8, slope=30)], limits=LIMITS) == []


def test_growth_at_the_start_of_a_life_is_none() -> None:
    assert unbounded([series("rollout-0", minutes=2, slope=90)], limits=LIMITS) == []


def test_one_large_record_is_no_leak() -> None:
    one = series("learner", minutes=10)
    one.rss_mib[300:310] = [400.0] * 10
    assert unbounded([one], limits=LIMITS) == []


def test_files_that_are_never_closed_are_a_finding_but_not_of_a_server() -> None:
    leaking = [series(name, minutes=10, files_min=5) for name in ("reward-sum-0", "server:redis")]
    found = unbounded(leaking, limits=LIMITS)
    assert len(found) == 1
    assert "reward-sum-0 (pid 1) opened" in found[0]


def test_a_living_process_is_measured_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    vitals = Vitals(lambda: {"self": os.getpid(), "gone": 2**22 + 1})
    vitals.look(now_s=1.0)
    vitals.look(now_s=2.0)
    (own,) = vitals.series()
    assert (own.name, own.at_s) == ("self", [1.0, 2.0])
    assert own.rss_mib[0] > 1
    assert own.num_files[0] > 1
    note_series(tmp_path / "vitals.csv", [own])
    assert len((tmp_path / "vitals.csv").read_text().splitlines()) == 3
