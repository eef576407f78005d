"""The commit rule: a commit never passes an unfinished record, and ends at the position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.log import Envelope
from topics.tracker import OffsetTracker

PLACE = ("samples", 0)


def envelope(offset: int, *, partition: int = 0) -> Envelope:
    return Envelope(
        topic="samples",
        partition=partition,
        offset=offset,
        key=None,
        record=None,
        headers={},
        unix_ms=0,
        num_bytes=0,
    )


@given(
    gaps=st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=40),  # 2 and more: dead letters, markers
    order=st.randoms(use_true_random=False),
    tail=st.integers(min_value=0, max_value=3),
)
def test_a_commit_never_passes_an_unfinished_record(gaps: list[int], order: object, tail: int) -> None:
    tracker = OffsetTracker()
    offsets = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    envelopes = [envelope(offset) for offset in offsets]
    for each in envelopes:
        tracker.take(each, now_s=0.0)
    end = offsets[-1] + 1 + tail
    tracker.reached({PLACE: end})
    unfinished = set(offsets)
    shuffled = list(envelopes)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    last = 0
    for each in shuffled:
        positions = tracker.commit_positions()
        if positions:
            assert positions[PLACE] == min(unfinished)
            assert positions[PLACE] >= last
            last = positions[PLACE]
            tracker.committed(positions)
        assert tracker.finish(each)
        unfinished.remove(each.offset)
    assert tracker.commit_positions() == {PLACE: end}
    assert tracker.num_unfinished == 0


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "finish", "revoke", "commit"]), st.integers(0, 2), st.integers(0, 5))
    )
)
def test_any_sequence_of_events_keeps_the_rule(steps: list[tuple[str, int, int]]) -> None:
    tracker = OffsetTracker()
    model: dict[int, list[Envelope]] = {}
    taken: dict[int, int] = {}
    stale: list[Envelope] = []
    for kind, partition, number in steps:
        mine = model.setdefault(partition, [])
        if kind == "take":
            each = envelope(taken.get(partition, 0), partition=partition)
            taken[partition] = each.offset + 1
            tracker.take(each, now_s=0.0)
            mine.append(each)
        elif kind == "finish" and mine:
            assert tracker.finish(mine.pop(number % len(mine)))
        elif kind == "revoke":
            tracker.forget([("samples", partition)])
            stale += mine
            mine.clear()
            taken[partition] = 0  # read again from the start
        positions = tracker.commit_positions()
        if kind == "commit":
            tracker.committed(positions)
        for (_, owner), position in positions.items():
            assert all(each.offset >= position for each in model[owner])
            assert position <= taken[owner]
        assert tracker.num_unfinished == sum(len(each) for each in model.values())
        assert not any(tracker.owns(each) for each in stale)


def test_a_finished_record_of_a_revoked_partition_does_not_count_for_its_redelivery() -> None:
    tracker = OffsetTracker()
    first, again = envelope(0), envelope(0)
    tracker.take(first, now_s=0.0)
    tracker.forget([PLACE])
    tracker.take(again, now_s=1.0)
    assert not tracker.finish(first)
    assert tracker.owns(again)
    assert tracker.commit_positions() == {PLACE: 0}


def test_the_oldest_unfinished_record_is_named() -> None:
    tracker = OffsetTracker()
    old, young = envelope(3), envelope(4)
    tracker.take(old, now_s=10.0)
    tracker.take(young, now_s=50.0)
    assert tracker.unfinished_over(30.0, now_s=60.0) == [old]
    assert tracker.oldest_s(now_s=60.0) == 50.0
    tracker.finish(old)
    assert tracker.unfinished_over(30.0, now_s=60.0) == []


def test_only_positions_that_moved_are_to_be_committed() -> None:
    tracker = OffsetTracker()
    tracker.reached({PLACE: 7, ("samples", 1): 2})
    positions = tracker.commit_positions()
    assert positions == {PLACE: 7, ("samples", 1): 2}
    tracker.committed(positions)
    assert tracker.commit_positions() == {}
    tracker.reached({PLACE: 9, ("samples", 1): 2})
    assert tracker.commit_positions() == {PLACE: 9}
