"""The choice of the next peer, on a clock that moves only when told."""

from __future__ import annotations

import pytest

from pipeline.weights.directory import PeerInfo
from pipeline.weights.peer_board import Fault, PeerBoard, Problem
from schemas.errors import WeightsError
from topics.clock import ManualClock

_A, _B = "http://a:1", "http://b:1"


def _board(clock: ManualClock, *urls: str) -> PeerBoard:
    return PeerBoard([PeerInfo(url=url) for url in urls], clock=clock, backoff_s=1.0, max_backoff_s=4.0)


def _fail(board: PeerBoard, url: str, fault: Fault, *, retry_after_s: float = 0.0) -> None:
    assert board.pick("d").url == url
    board.report(url, "d", problem=Problem(fault=fault, detail="x", retry_after_s=retry_after_s))


def test_requests_are_spread_over_the_peers() -> None:
    board = _board(ManualClock(), _A, _B, _A + "/")
    assert sorted(str(board.pick("d").url) for _ in range(4)) == [_A, _A, _B, _B]


def test_the_pause_doubles_up_to_its_limit_and_ends_with_a_success() -> None:
    clock = ManualClock()
    board = _board(clock, _A)
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        _fail(board, _A, Fault.DEAD)
        assert (board.pick("d").url, board.pick("d").wait_s) == (None, pause_s)
        clock.advance(pause_s)
    assert board.pick("d").url == _A
    board.report(_A, "d", problem=None)
    _fail(board, _A, Fault.DEAD)
    assert board.pick("d").wait_s == 1.0


def test_an_absent_chunk_pauses_that_chunk_only() -> None:
    board = _board(ManualClock(), _A)
    _fail(board, _A, Fault.ABSENT)
    assert board.pick("d").url is None
    assert board.pick("other").url == _A


def test_a_busy_peer_is_left_for_as_long_as_it_asks_within_the_limit() -> None:
    board = _board(ManualClock(), _A)
    _fail(board, _A, Fault.BUSY, retry_after_s=3600.0)
    assert board.pick("d").wait_s == 4.0


def test_a_bad_peer_is_asked_only_when_no_other_is_ready() -> None:
    clock = ManualClock()
    board = _board(clock, _A, _B)
    _fail(board, _A, Fault.BAD)
    clock.advance(10.0)
    assert [board.pick("d").url for _ in range(3)] == [_B, _B, _B]
    board.report(_B, "d", problem=Problem(fault=Fault.DEAD, detail="x"))
    assert board.pick("d").url == _A
    assert board.bad_peers == (_A,)


def test_when_every_peer_refuses_the_token_there_is_nobody_to_ask() -> None:
    board = _board(ManualClock(), _A)
    _fail(board, _A, Fault.REFUSED)
    with pytest.raises(WeightsError, match=r"no peer is left .*http://a:1 \(refused: x\)"):
        board.pick("d")
