"""What is told when samples are bad or log-probabilities are apart: once, and again only after it was well."""

from __future__ import annotations

import math

from consumers.learner.alarms import FEWEST, WINDOW, DropAlarm, MismatchAlarm
from consumers.learner.reports import Tally
from schemas.reasons import Reason
from tests.unit.consumers.learner.material import assembler, feed, prompt, reward, sample

BAD = Reason.NON_FINITE_LOGPROB.value


def test_a_fault_above_its_share_is_told_once() -> None:
    alarm = DropAlarm(share=0.1)
    assert [alarm.add("") for _ in range(FEWEST)] == [None] * FEWEST
    told = [share for share in (alarm.add(BAD) for _ in range(20)) if share is not None]
    assert len(told) == 1
    assert 0.1 < told[0] < 0.2


def test_too_few_members_say_nothing() -> None:
    alarm = DropAlarm(share=0.1)
    assert [alarm.add(BAD) for _ in range(FEWEST - 1)] == [None] * (FEWEST - 1)
    assert alarm.add(BAD) == 1.0


def test_it_is_told_again_after_it_was_well() -> None:
    alarm = DropAlarm(share=0.1)
    first = [alarm.add(BAD) for _ in range(FEWEST)]
    well = [alarm.add("") for _ in range(WINDOW)]
    again = [alarm.add(BAD) for _ in range(FEWEST)]
    assert [sum(share is not None for share in part) for part in (first, well, again)] == [1, 0, 1]


def test_being_late_or_stale_is_no_fault_and_reasons_do_not_add_up() -> None:
    alarm = DropAlarm(share=0.4)
    words = [Reason.STALE.value, Reason.GROUP_DROPPED.value, Reason.REWARD_FAILED.value, BAD]
    assert [alarm.add(words[number % 4]) for number in range(200)] == [None] * 200


def test_dropped_samples_of_a_learner_make_a_notice_with_reason_and_share() -> None:
    """Case 25: an event above a limit."""
    target = assembler(min_group_members=3)
    for group in range(8):
        feed(target, [prompt(group)])
        feed(target, [sample(group, member, logprobs=(math.nan, -1.0)) for member in range(5)])
        feed(target, [sample(group, member) for member in range(5, 8)])
        feed(target, [reward(group, member) for member in range(8)])
        batch = target.cut(0, 1)
        assert batch is not None
        target.mark_trained(batch)
        target.take_outcomes()
    tally: Tally = target.tally
    (notice,) = tally.take_notices()
    assert (notice.name, notice.details["reason"]) == ("many_dropped", BAD)
    assert 0.6 < notice.gauges["share"] < 0.7
    assert tally.take_counts()["members_dropped", BAD] == 40


def test_log_probabilities_apart_are_told_once_until_they_were_near() -> None:
    """Case 34: an engine that computes with other weights than it says."""
    alarm = MismatchAlarm(limit=0.5)
    assert [alarm.add(value) for value in (0.01, 0.6, 0.9, 0.4, 0.7, 0.2, 0.6)] == [
        False,
        True,
        False,
        False,
        False,
        False,
        True,
    ]
