"""The stage clock as text."""

from __future__ import annotations

from ops.pace_view import pace_lines


def test_phases_and_flows_by_owner_in_80_columns() -> None:
    gauges = {f"phase_typical_s{{of=learner,phase=phase_{number}}}": 0.12345 for number in range(9)}
    gauges |= {
        "phase_typical_s{of=rollout,phase=generating}": 2.0,
        "phase_typical_s{of=rollout,phase=starting}": 9.0,
        "flow_per_s{of=rlweave.demo.reward.sum,counter=records_read samples}": 812.5,
        "flow_per_s{of=rlweave.demo.reward.a-name-of-some-length,counter=records_read samples}": 1.0,
        "phase_share{of=learner,phase=waiting_for_data}": 0.246,
        "step": 3.0,
    }
    lines = list(pace_lines(gauges, run="demo"))
    assert max(map(len, lines)) <= 80
    assert lines[:2] == ["", "phases, median time"]
    assert lines[2].split()[:4] == ["learner", "phase_0", "0.123", "s,"]
    assert "rollout        generating 2 s" in lines
    assert "learner        waiting_for_data 25%" in lines
    assert [line for line in lines if line.strip() in ("s,", "s")] == []
    assert lines[-5:] == [
        "",
        "flows, per second",
        "reward.a-name-of-some-length",
        "               records_read samples 1",
        "reward.sum     records_read samples 812.5",
    ]


def test_nothing_is_shown_of_a_scheduler_that_says_nothing() -> None:
    assert list(pace_lines({"step": 3.0, "phase_typical_s{of=a}": 1.0}, run="demo")) == []


def test_names_that_a_terminal_would_obey_are_passed_over() -> None:
    assert list(pace_lines({"phase_typical_s{of=x,phase=\x1b[2J}": 1.0}, run="demo")) == []
