"""Shares of phases and slots over a window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler.signals import Signals
from consumers.scheduler.snapshot import Parked, Snapshot, Standing
from consumers.scheduler.stage_clock import MOST_NAMES
from pipeline.history import LedgerView
from schemas.records import StageEvent

WINDOW_S = 10.0


def event(seq: int, kind: str, name: str, **values: object) -> StageEvent:
    given: dict[str, object] = {"stage": "learner", "instance": "learner-1", "monotonic_s": 1e6, "unix_ms": 0}
    return StageEvent(run="r", seq=seq, kind=kind, name=name, **(given | values))  # type: ignore[arg-type]


def ended(seq: int, name: str, spent_s: float, **values: object) -> StageEvent:
    return event(seq, "phase_ended", name, gauges={"spent_s": spent_s}, **values)


def beat(seq: int, running: float, free: float, **more: float) -> StageEvent:
    gauges = {"running_sequences": running, "free_slots": free, **more}
    return event(seq, "heartbeat", "heartbeat", stage="rollout", instance="rollout-1", gauges=gauges)


def at(now_s: float, *events: tuple[float, StageEvent]) -> Snapshot:
    signals = Signals(began_s=0.0, ledger=LedgerView(1), rate_window_s=WINDOW_S)
    for heard_s, one in events:
        signals.add_event(one, now_s=heard_s)
    return signals.snapshot(now_s=now_s, lag={}, standing=Standing())


def test_time_is_divided_among_the_phases_that_ended_and_the_one_that_goes_on() -> None:
    found = at(
        20.0,
        (0.0, event(0, "phase_began", "waiting_for_data")),
        (14.0, ended(1, "waiting_for_data", 14.0)),
        (14.0, event(2, "phase_began", "forward_backward")),
        (18.0, ended(3, "forward_backward", 4.0)),
        (18.0, event(4, "phase_began", "waiting_for_data")),
    )
    assert found.shares == pytest.approx({("learner", "waiting_for_data"): 0.6, ("learner", "forward_backward"): 0.4})


def test_who_was_just_heard_of_counts_since_then() -> None:
    found = at(20.0, (18.0, event(0, "phase_began", "publishing")), (19.0, ended(1, "publishing", 1.0)))
    assert found.shares[("learner", "publishing")] == pytest.approx(1.0)  # the phase last heard of goes on


def test_the_share_of_slots_is_over_the_window() -> None:
    assert at(20.0, (9.0, beat(0, 0, 16)), (12.0, beat(1, 16, 0)), (19.0, beat(2, 8, 8))).slot_use == 0.75
    assert at(20.0).slot_use is None


@pytest.mark.parametrize(
    ("running", "free", "parked", "use"), [(0, 16, 16, 1.0), (4, 12, 4, 0.5), (0, 0, 3, 1.0), (2, 6, 100, 1.0)]
)
def test_what_is_parked_is_warm_and_not_free(running: int, free: int, parked: int, use: float) -> None:
    found = at(20.0, (19.0, beat(0, running, free, parked_sequences=parked, parked_return_s=1.5)))
    assert found.slot_use == use
    assert found.free_slots() == max(0, free - parked)
    assert found.parked() == Parked(sequences=parked, return_s=1.5)


def test_nothing_parked_is_no_signal() -> None:
    found = at(20.0, (19.0, beat(0, 4, 12, parked_sequences=0)))
    assert (found.parked(), found.free_slots()) == (None, 12)


def test_foreign_names_take_no_room_without_end() -> None:
    foreign = [(float(number), ended(number, f"phase-{number}", 1.0)) for number in range(2000)]
    signals = Signals(began_s=0.0, ledger=LedgerView(1), rate_window_s=5000.0)
    for heard_s, one in foreign:
        signals.add_event(one, now_s=heard_s)
    assert len(signals.snapshot(now_s=2000.0, lag={}, standing=Standing()).shares) == MOST_NAMES


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from("ab"), st.floats(-1, 1e9)), max_size=20))
def test_shares_add_up_to_1_at_most_whatever_a_sender_says(spans: list[tuple[float, str, float]]) -> None:
    now_s, events = 0.0, []
    for number, (pause_s, name, spent_s) in enumerate(spans):
        now_s += pause_s
        events.append((now_s, ended(number, name, spent_s)))
    shares = at(now_s + 1, *events).shares
    assert sum(shares.values()) <= 1 + 1e-9
    assert all(share >= 0 for share in shares.values())
