"""How fast weights leave is known only from what they did while nothing disturbed them."""

from __future__ import annotations

from pipeline.traffic.flow import GONE_S, IDLE, QUIET_S, WINDOW_S, Flow, FlowWatch

STEP_S = 0.01


class Publish:
    """Weights that leave at a rate that a test sets."""

    def __init__(self) -> None:
        self.watch = FlowWatch()
        self.now_s = 100.0
        self.num_bytes = 0.0

    def run(self, seconds: float, *, rate: float | None, num_sending: int, is_draining: bool = False) -> Flow:
        flow = IDLE
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.num_bytes += (rate or 0.0) * STEP_S
            told = None if rate is None else self.num_bytes
            flow = self.watch.look(self.now_s, num_sending=num_sending, num_bytes=told, is_draining=is_draining)
        return flow


def test_a_rate_is_known_once_two_windows_agree() -> None:
    publish = Publish()
    assert publish.run(WINDOW_S, rate=1000.0, num_sending=4) == Flow(is_active=True, bytes_s=None)
    flow = publish.run(2.5 * WINDOW_S, rate=1000.0, num_sending=4)
    assert flow.is_active
    assert flow.bytes_s is not None
    assert abs(flow.bytes_s - 1000.0) < 1.0


def test_what_background_takes_away_does_not_count_as_left() -> None:
    """Else the background would take half of the link, see the weights at half of it, and keep it."""
    publish = Publish()
    publish.run(1.0, rate=1000.0, num_sending=4)
    flow = publish.run(1.0, rate=500.0, num_sending=4)
    assert flow.bytes_s is not None
    assert flow.bytes_s >= 999.0


def test_more_receivers_make_the_rate_unknown_again() -> None:
    publish = Publish()
    publish.run(1.0, rate=300.0, num_sending=2)
    assert publish.run(STEP_S, rate=900.0, num_sending=6).bytes_s is None
    flow = publish.run(1.0, rate=900.0, num_sending=6)
    assert flow.bytes_s is not None
    assert abs(flow.bytes_s - 900.0) < 50.0


def test_half_of_the_receivers_are_measured_anew() -> None:
    publish = Publish()
    publish.run(1.0, rate=900.0, num_sending=8)
    flow = publish.run(1.0, rate=200.0, num_sending=3)
    assert flow.bytes_s is not None
    assert abs(flow.bytes_s - 200.0) < 1.0


def test_a_burst_is_over_after_a_quiet_moment_and_not_between_two_chunks() -> None:
    publish = Publish()
    publish.run(0.5, rate=900.0, num_sending=4)
    assert publish.run(QUIET_S / 2, rate=0.0, num_sending=0).is_active
    assert publish.run(0.5, rate=900.0, num_sending=0, is_draining=True).is_active
    assert publish.run(2 * QUIET_S, rate=0.0, num_sending=0) == IDLE


def test_what_was_known_of_an_earlier_publish_is_not_believed_of_one_that_was_not_seen_to_begin() -> None:
    publish = Publish()
    publish.run(1.0, rate=200.0, num_sending=4)
    publish.now_s += 5.0
    assert publish.run(STEP_S, rate=900.0, num_sending=4) == Flow(is_active=True, bytes_s=None)
    flow = publish.run(1.0, rate=900.0, num_sending=4)
    assert flow.bytes_s is not None
    assert abs(flow.bytes_s - 900.0) < 1.0


def test_where_nothing_can_be_measured_the_rate_stays_unknown() -> None:
    assert Publish().run(2.0, rate=None, num_sending=4) == Flow(is_active=True, bytes_s=None)


def test_receivers_that_are_gone_hold_up_nobody_and_are_measured_anew_when_they_come_back() -> None:
    publish = Publish()
    publish.run(1.0, rate=900.0, num_sending=4)
    assert publish.run(GONE_S / 2, rate=0.0, num_sending=4).is_active
    assert publish.run(GONE_S, rate=0.0, num_sending=4) == IDLE
    assert publish.run(STEP_S, rate=400.0, num_sending=4) == Flow(is_active=True, bytes_s=None)
    flow = publish.run(1.0, rate=900.0, num_sending=4)
    assert flow.bytes_s is not None
    assert abs(flow.bytes_s - 900.0) < 1.0
