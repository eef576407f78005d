"""One is in hand, the newest waits, the others are superseded and counted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.uploads.cadence import Behind, Cadence
from pipeline.uploads.queue import UploadQueue
from schemas.records import Version


def at(step: int, *, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def test_while_one_is_in_hand_only_the_newest_waits() -> None:
    queue = UploadQueue()
    assert queue.look([]) == []
    assert queue.look([at(10)]) == [at(10)]
    assert queue.next == at(10)
    assert queue.begin(at(10)) == 0
    queue.look([at(10), at(20)])
    queue.look([at(20), at(30)])
    queue.look([at(30), at(40)])
    assert (queue.next, queue.waiting) == (at(10), at(40))
    queue.succeeded()
    assert queue.next == at(40)
    assert queue.begin(at(40)) == 2
    queue.succeeded()
    assert queue.next is None


def test_one_that_failed_is_tried_again_until_a_newer_one_takes_its_place() -> None:
    queue = UploadQueue()
    queue.look([])
    queue.look([at(10)])
    queue.begin(at(10))
    queue.failed()
    assert queue.next == at(10)
    assert queue.begin(at(10)) == 0
    queue.failed()
    queue.look([at(10), at(20)])
    assert queue.next == at(20)
    assert queue.begin(at(20)) == 1


def test_older_ones_that_were_there_at_the_start_were_not_superseded() -> None:
    queue = UploadQueue()
    assert queue.look([at(10), at(20), at(30)]) == []
    assert queue.next == at(30)
    assert queue.begin(at(30)) == 0


def test_what_is_at_the_target_and_what_is_older_is_not_uploaded() -> None:
    queue = UploadQueue()
    queue.done = at(20)
    queue.look([at(10), at(20)])
    assert queue.next is None
    queue.look([at(12, lineage=2)])
    assert queue.next == at(12, lineage=2), "a later lineage is newer, whatever its step"


@settings(deadline=None, database=None)
@given(st.lists(st.sampled_from(["come", "begin", "succeed", "fail"]), max_size=60))
def test_each_is_uploaded_superseded_or_waits(events: list[str]) -> None:
    queue, step, num_done, num_superseded, is_begun = UploadQueue(), 0, 0, 0, False
    queue.look([])
    for event in events:
        if event == "come":
            step += 1
            queue.look([at(step)])
        elif event == "begin" and not is_begun and queue.next is not None:
            num_superseded += queue.begin(queue.next)
            is_begun = True
        elif event == "succeed" and is_begun:
            queue.succeeded()
            num_done, is_begun = num_done + 1, False
        elif event == "fail" and is_begun:
            queue.failed()
            is_begun = False
    in_hand = 0 if queue.in_hand is None else 1
    assert num_done + num_superseded + in_hand <= step
    while (version := queue.next) is not None:
        if not is_begun:
            num_superseded += queue.begin(version)
        queue.succeeded()
        num_done, is_begun = num_done + 1, False
    assert num_done + num_superseded == step


def test_uploads_that_take_longer_than_checkpoints_are_apart_are_told_early_and_once() -> None:
    cadence = Cadence()
    assert cadence.going_on(seconds=100.0, sent_bytes=1, total_bytes=1000) is None, "the gap is not known"
    for number in range(3):
        cadence.arrived(at(10 * number), at_s=20.0 * number)
    assert cadence.gap_s == 20.0
    assert cadence.going_on(seconds=2.0, sent_bytes=50, total_bytes=1000) is None, "too early to say"
    assert cadence.going_on(seconds=5.0, sent_bytes=500, total_bytes=1000) is None, "it keeps up"
    told = cadence.going_on(seconds=5.0, sent_bytes=100, total_bytes=1000)
    assert told == Behind(upload_s=50.0, gap_s=20.0, gap_steps=10, enough_steps=25)
    assert cadence.going_on(seconds=6.0, sent_bytes=110, total_bytes=1000) is None, "told once"
    assert cadence.ended(seconds=50.0) is None
    assert cadence.ended(seconds=10.0) is None
    assert cadence.ended(seconds=30.0) is not None, "it had recovered"


def test_one_that_stands_still_is_behind_once_it_took_longer_than_a_gap() -> None:
    cadence = Cadence()
    cadence.arrived(at(1), at_s=0.0)
    cadence.arrived(at(2), at_s=4.0)
    assert cadence.going_on(seconds=3.0, sent_bytes=0, total_bytes=1000) is None
    told = cadence.going_on(seconds=5.0, sent_bytes=0, total_bytes=1000)
    assert told is not None
    assert (told.upload_s, told.gap_s, told.enough_steps) == (5.0, 4.0, 2)


def test_a_new_lineage_is_no_gap() -> None:
    cadence = Cadence()
    cadence.arrived(at(30), at_s=0.0)
    cadence.arrived(at(20, lineage=2), at_s=500.0)
    assert cadence.gap_s is None
