"""What may leave a host: rates hold, weights go first, background gets what is left, and a floor in any case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.traffic.bucket import Bucket
from pipeline.traffic.classes import GRADIENT_SYNC, TrafficClass
from pipeline.traffic.flow import IDLE, Flow
from pipeline.traffic.gate import ASK_AGAIN_S, BURST_S, HEADROOM, Gate
from pipeline.traffic.permit import Permit, parse_key, permit_of
from pipeline.traffic.settings import TrafficSettings
from schemas.errors import SettingsError
from topics.clock import ManualClock

WEIGHTS, EVALUATION, CHECKPOINTS = TrafficClass.WEIGHTS, TrafficClass.EVALUATION, TrafficClass.CHECKPOINTS
RATE, PIECE = 1000.0, 50
quick = settings(max_examples=60, deadline=None, database=None)


class Host:
    """A gate whose surroundings a test sets."""

    def __init__(self, permit: Permit) -> None:
        self.clock = ManualClock()
        self.flow = IDLE
        self.phase = ""
        self.gate = Gate(permit, clock=self.clock, flow=lambda: self.flow, phase=lambda: self.phase)

    def sends(self, traffic: TrafficClass, *, seconds: float, piece: int = PIECE) -> int:
        """Bytes that go through in a while, when as many are asked for as may go."""
        end_s, sent = self.clock.monotonic() + seconds, 0
        while self.clock.monotonic() < end_s:
            wait_s = self.gate.ask(traffic, piece)
            if wait_s == 0:
                sent += piece
            else:
                self.clock.advance(min(max(wait_s, 1e-4), 0.01))
        return sent


@quick
@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 200)), min_size=1, max_size=60),
    st.floats(10.0, 5000.0),
)
def test_a_bucket_never_gives_more_than_its_rate_and_one_burst_or_piece(
    steps: list[tuple[float, int]], rate: float
) -> None:
    clock = ManualClock()
    bucket = Bucket(rate=rate, burst_s=BURST_S, clock=clock)
    passed: list[tuple[float, int]] = []
    for pause_s, amount in steps:
        clock.advance(pause_s)
        if bucket.wait_s(amount) == 0:
            bucket.book(amount)
            passed.append((clock.monotonic(), amount))
    for first, (began_s, _) in enumerate(passed):
        for last in range(first, len(passed)):
            span = passed[first : last + 1]
            most = rate * (span[-1][0] - began_s) + max(rate * BURST_S, *(float(amount) for _, amount in span))
            assert sum(amount for _, amount in span) <= most + rate * BURST_S + 1e-6


@quick
@given(
    st.lists(
        st.tuples(st.sampled_from([None, 0.0, 400.0, 900.0]), st.sampled_from(["", "forward_backward", GRADIENT_SYNC])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0.0, 100.0]),
)
def test_weights_never_wait_and_background_never_exceeds_its_share(
    scenes: list[tuple[float | None, str]], floor: float
) -> None:
    """`None`: weights leave at a rate that is not known yet; 0: none leave."""
    host = Host(Permit(link_bytes_s=RATE, floor_bytes_s=floor))
    debt = float(PIECE) + RATE * BURST_S
    for weights, phase in scenes:
        host.flow, host.phase = IDLE if weights == 0.0 else Flow(is_active=True, bytes_s=weights), phase
        assert host.gate.ask(WEIGHTS, 10**9) == 0
        if phase == GRADIENT_SYNC or weights is None:
            share = floor
        else:
            share = max(floor, RATE if weights == 0.0 else HEADROOM * RATE - weights)
        sent = host.sends(CHECKPOINTS, seconds=2.0)
        assert sent <= share * 2.0 + debt, (weights, phase)
        assert sent >= 0.85 * share * 2.0 - 2 * debt, (weights, phase)


def test_a_publish_stops_background_at_the_next_piece_and_it_goes_on_when_it_is_over() -> None:
    host = Host(Permit())
    assert host.gate.ask(CHECKPOINTS, 10**9) == 0
    host.flow = Flow(is_active=True, bytes_s=None)
    assert host.gate.ask(CHECKPOINTS, 1) == ASK_AGAIN_S
    assert host.sends(CHECKPOINTS, seconds=1.0) == 0
    host.flow = IDLE
    assert host.gate.ask(CHECKPOINTS, 10**9) == 0
    assert host.gate.held_up_s[CHECKPOINTS] == pytest.approx(1.0, abs=0.05)


def test_what_is_limited_by_its_rate_alone_is_not_counted_as_standing_back() -> None:
    host = Host(Permit(rates={(CHECKPOINTS, ""): 100.0}))
    assert host.sends(CHECKPOINTS, seconds=10.0) == pytest.approx(1000, abs=2 * PIECE)
    assert host.gate.held_up_s[CHECKPOINTS] == 0


def test_without_a_known_link_the_floor_is_all_there_is_while_weights_leave() -> None:
    host = Host(Permit(floor_bytes_s=100.0))
    host.flow = Flow(is_active=True, bytes_s=5.0)
    assert host.sends(CHECKPOINTS, seconds=10.0) == pytest.approx(1000, abs=2 * PIECE)


def test_a_phase_has_a_rate_of_its_own() -> None:
    host = Host(permit_of({"checkpoints": 400.0, "checkpoints@forward_backward": 100.0}))
    assert host.sends(CHECKPOINTS, seconds=5.0) == pytest.approx(2000, abs=2 * PIECE)
    host.phase = "forward_backward"
    assert host.sends(CHECKPOINTS, seconds=5.0) == pytest.approx(500, abs=2 * PIECE)


def test_evaluation_goes_before_checkpoints_while_it_asks() -> None:
    host = Host(Permit(link_bytes_s=RATE))
    sent = dict.fromkeys((EVALUATION, CHECKPOINTS), 0)
    while host.clock.monotonic() < 5.0:
        for traffic in (CHECKPOINTS, EVALUATION):
            if host.gate.ask(traffic, PIECE) == 0:
                sent[traffic] += PIECE
        host.clock.advance(0.005)
    assert sent[EVALUATION] >= 0.9 * RATE * 5.0
    assert sent[CHECKPOINTS] <= 3 * PIECE
    assert host.sends(CHECKPOINTS, seconds=5.0) >= 0.9 * RATE * 4.9, "nobody asks before it any more"


def test_what_is_set_aside_for_others_is_not_given_to_background() -> None:
    host = Host(permit_of({"link": RATE, "samples": 600.0}))
    assert host.sends(CHECKPOINTS, seconds=5.0) == pytest.approx(2000, abs=2 * PIECE + RATE * BURST_S)


def test_a_command_replaces_all_that_was_permitted() -> None:
    host = Host(Permit(link_bytes_s=RATE, floor_bytes_s=50.0))
    host.gate.permit = permit_of({"checkpoints@waiting_for_data": 0.0})
    assert host.gate.ask(CHECKPOINTS, 10**9) == 0
    host.phase = "waiting_for_data"
    assert host.sends(CHECKPOINTS, seconds=1.0) == 0


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({"weights": 0}, "no engine would ever serve another version"),
        ({"checkpoint": 1.0}, "there is no traffic class 'checkpoint'"),
        ({"checkpoints@noon": 1.0}, "'checkpoints@noon' is of an unknown phase"),
        ({"checkpoints": -1.0}, "'checkpoints' is -1"),
        ({"checkpoints": float("nan")}, "'checkpoints' is nan"),
        ({"link": 0.0}, "'link' is 0"),
    ],
)
def test_a_permission_that_makes_no_sense_is_refused(rates: Mapping[str, float], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        permit_of(rates)


def test_keys_are_a_class_or_a_class_in_a_phase() -> None:
    assert parse_key("weights") == (WEIGHTS, "")
    assert parse_key("evaluation@gradient_sync") == (EVALUATION, GRADIENT_SYNC)


def test_a_run_file_cannot_close_the_way_of_weights() -> None:
    with pytest.raises(ValidationError, match="no engine would ever serve another version"):
        TrafficSettings(rates={"weights": 0.0})
    assert TrafficSettings(rates={"weights@gradient_sync": 0.0}).permit.rate(WEIGHTS) is None
