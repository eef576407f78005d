"""What peers' faults do to them, on a clock that moves only when told."""

from __future__ import annotations

from pipeline.weights.peer_board import Fault, PeerBoard, Problem
from topics.clock import ManualClock

_A, _B = "http://a:1", "http://b:1"


def _board(clock: ManualClock, *urls: str) -> PeerBoard:
    board = PeerBoard(clock=clock, backoff_s=1.0, max_backoff_s=4.0)
    for url in urls:
        board.add(url)
    return board


def _pick(board: PeerBoard, *urls: str, digest: str = "d") -> str | None:
    return board.pick(urls, digest=digest, max_in_flight=10)


def _fail(board: PeerBoard, url: str, fault: Fault, *, retry_after_s: float = 0.0) -> None:
    assert _pick(board, url) == url
    board.report(url, "d", problem=Problem(fault=fault, detail="x", retry_after_s=retry_after_s))


def test_requests_are_spread_over_the_peers() -> None:
    board = _board(ManualClock(), _A, _B)
    assert sorted(str(_pick(board, _A, _B)) for _ in range(4)) == [_A, _A, _B, _B]


def test_no_peer_gets_more_requests_than_allowed() -> None:
    board = _board(ManualClock(), _A)
    assert [board.pick([_A], digest="d", max_in_flight=2) for _ in range(3)] == [_A, _A, None]
    board.withdrawn(_A)
    assert board.pick([_A], digest="d", max_in_flight=2) == _A


def test_the_pause_doubles_up_to_its_limit_and_ends_with_a_success() -> None:
    clock = ManualClock()
    board = _board(clock, _A)
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        _fail(board, _A, Fault.DEAD)
        assert (_pick(board, _A), board.wait_s([_A], digest="d")) == (None, pause_s)
        clock.advance(pause_s)
    assert _pick(board, _A) == _A
    board.report(_A, "d", problem=None)
    _fail(board, _A, Fault.DEAD)
    assert board.wait_s([_A], digest="d") == 1.0


def test_an_absent_chunk_pauses_that_chunk_only() -> None:
    board = _board(ManualClock(), _A)
    _fail(board, _A, Fault.ABSENT)
    assert _pick(board, _A) is None
    assert _pick(board, _A, digest="other") == _A


def test_a_busy_peer_is_left_for_as_long_as_it_asks_within_the_limit() -> None:
    board = _board(ManualClock(), _A)
    _fail(board, _A, Fault.BUSY, retry_after_s=3600.0)
    assert board.wait_s([_A], digest="d") == 4.0


def test_a_bad_peer_is_asked_only_when_no_other_is_ready() -> None:
    clock = ManualClock()
    board = _board(clock, _A, _B)
    _fail(board, _A, Fault.BAD)
    clock.advance(10.0)
    assert [_pick(board, _A, _B) for _ in range(3)] == [_B, _B, _B]
    board.report(_B, "d", problem=Problem(fault=Fault.DEAD, detail="x"))
    assert _pick(board, _A, _B) == _A
    assert board.bad_peers == (_A,)


def test_a_peer_that_refuses_the_token_is_never_ready() -> None:
    clock = ManualClock()
    board = _board(clock, _A)
    _fail(board, _A, Fault.REFUSED)
    clock.advance(100.0)
    assert (_pick(board, _A), board.wait_s([_A], digest="d")) == (None, None)
    assert board.summary() == f"{_A} (refused: x)"


def test_a_peer_whose_news_ended_rests_and_is_named() -> None:
    clock = ManualClock()
    board = _board(clock, _A)
    board.lost(_A, Problem(fault=Fault.SLOW, detail="silent"))
    assert (_pick(board, _A), board.wait_s([_A], digest="d")) == (None, 1.0)
    assert board.notices == (f"peer {_A} was slow: silent",)
