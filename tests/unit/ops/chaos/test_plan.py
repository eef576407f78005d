"""The list of faults: drawn from the seed alone, as long as it was asked for, with nothing that cannot be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ops.chaos import clocks
from ops.chaos.faults import KINDS
from ops.chaos.plan import Plan, draw_plan
from ops.chaos.settings import ChaosSettings
from ops.chaos.stage_set import layout_of
from schemas.errors import SettingsError

EVERYWHERE = [kind.name for kind in KINDS if kind.name not in ("disk-full", "clock-step", "broker-rolling")]
LONGEST_S = 30.0


def settings_of(folder: Path, *, faults: int = 20, seed: int = 1, only: tuple[str, ...] = ()) -> ChaosSettings:
    return ChaosSettings(folder=folder / "run", faults=faults, seed=seed, brokers=3, only=only)


def drawn(settings: ChaosSettings) -> Plan:
    return draw_plan(settings, layout_of(settings))


def as_text(plan: Plan) -> list[str]:
    return [f"{each.number} {each.pause_s} {each}" for each in plan.faults]


def test_a_seed_gives_one_list_and_another_seed_another(tmp_path: Path) -> None:
    assert as_text(drawn(settings_of(tmp_path, seed=7))) == as_text(drawn(settings_of(tmp_path, seed=7)))
    assert as_text(drawn(settings_of(tmp_path, seed=7))) != as_text(drawn(settings_of(tmp_path, seed=8)))


@pytest.mark.parametrize("faults", [1, 5, 60])
def test_the_list_is_as_long_as_asked_for_and_no_fault_is_endless(tmp_path: Path, faults: int) -> None:
    plan = drawn(settings_of(tmp_path, faults=faults, only=tuple(EVERYWHERE)))
    assert [each.number for each in plan.faults] == list(range(1, faults + 1))
    assert all(0 <= each.fault.hold_s <= LONGEST_S and 0 < each.pause_s <= 3 for each in plan.faults)


def test_every_kind_comes_once_before_any_comes_twice(tmp_path: Path) -> None:
    plan = drawn(settings_of(tmp_path, faults=len(EVERYWHERE) + 3, only=tuple(EVERYWHERE)))
    assert {each.kind for each in plan.faults} == set(EVERYWHERE)


def test_only_the_wanted_kinds_are_drawn(tmp_path: Path) -> None:
    plan = drawn(settings_of(tmp_path, faults=6, only=("kill-worker", "redis-flush")))
    assert {each.kind for each in plan.faults} == {"kill-worker", "redis-flush"}


def test_what_a_fault_needs_is_known_before_the_start(tmp_path: Path) -> None:
    plan = drawn(settings_of(tmp_path, faults=8, only=("link-cut",)))
    assert plan.links == sorted({str(each.fault).split()[0] for each in plan.faults})
    assert (plan.clocks, plan.disks) == ([], False)


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no kind of fault earthquake") as raised:
        drawn(settings_of(tmp_path, only=("earthquake",)))
    assert "kill-learner" in str(raised.value.hint)


def test_without_the_library_no_clock_is_stepped_and_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "_PLACES", (str(tmp_path / "nowhere" / "*.so"),))
    plan = drawn(settings_of(tmp_path, faults=4, only=("clock-step", "kill-peer")))
    assert plan.not_run == {"clock-step": "libfaketime is not installed (Debian: apt install faketime)"}
    assert {each.kind for each in plan.faults} == {"kill-peer"}
    with pytest.raises(SettingsError, match="clock-step: libfaketime is not installed"):
        drawn(settings_of(tmp_path, only=("clock-step",)))


def test_who_is_not_root_is_told_why_no_disk_runs_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SettingsError, match="by root only"):
        drawn(settings_of(tmp_path, only=("disk-full",)))


def test_one_broker_cannot_be_restarted_in_turns(tmp_path: Path) -> None:
    one = replace(settings_of(tmp_path, only=("broker-rolling", "redis-flush")), brokers=1)
    assert "needs 3 brokers" in drawn(one).not_run["broker-rolling"]


def test_nothing_is_made_by_drawing(tmp_path: Path) -> None:
    drawn(settings_of(tmp_path))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["tasks.jsonl"]
