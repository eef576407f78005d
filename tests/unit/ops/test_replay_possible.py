"""Selections that nothing can match are refused with the options that exclude each other."""

from __future__ import annotations

import pytest

from ops.replay.possible import check_member, check_possible, explain_nothing
from ops.replay.select import SampleRef, Selection, SelectionError
from ops.replay.sources import Window
from schemas.records import Version
from tests.unit.ops.trace.slow_run import GROUP, TRAINED, SlowRun
from topics.catalog import COMMANDS, EVENTS, LEDGER, SAMPLES, WEIGHTS, Topic, num_partitions

V = [Version(lineage=1, step=step) for step in range(3)]


class Windows:
    """A run of four partitions, of which only the windows are asked for."""

    run, data_partitions, may_grow = "r", 4, False

    def window(self, topic: Topic) -> Window:
        return dict.fromkeys(range(num_partitions(topic, self.data_partitions)), (0, 10))

    read = first_at = None  # nothing is read


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(offsets=(5, 4)), "--offset begins at 5 and ends before that, at 4"),
        (Selection(times_ms=(2000, 1999)), "--time begins at 2000"),
        (Selection(versions=(V[2], V[1])), "--version begins at 1.2 and ends before that, at 1.1"),
        (Selection(versions=(V[1], V[2]), topics=(LEDGER,)), "records of ledger have no version"),
        (Selection(versions=(V[1], V[1]), group=3), None),
        (Selection(group=3, topics=(EVENTS, COMMANDS)), "records of events, commands belong to no group"),
        (Selection(partition=4), "there is no partition 4"),
        (Selection(partition=1, topics=(WEIGHTS,)), "there is no partition 1 of weights"),
        (Selection(partition=2, group=7), "group 7 is on partition 3, and 2 is wanted"),
        (Selection(partition=2, sample=SampleRef(run=None, group=7, member=0)), "group 7 is on partition 3"),
        (Selection(partition=3, group=7), None),
        (Selection(values=(0.5, 0.1)), "--min-value is 0.5 and --max-value is below that, 0.1"),
        (Selection(values=(None, float("nan"))), "compared with nan"),
        (Selection(values=(None, 0.1), topics=(SAMPLES,)), "records of samples have no value"),
        (Selection(values=(0.1, 0.1)), None),
        (Selection(partition=0, group=7, topics=(EVENTS, SAMPLES)), None),
        (Selection(offsets=(4, 4), times_ms=(5, 5), versions=(V[1], V[1])), None),
        (Selection(offsets=(10**9, None)), None),  # not there yet
        (Selection(), None),
    ],
)
def test_what_nothing_can_match_is_said(selection: Selection, said: str | None) -> None:
    if said is None:
        check_possible(selection, Windows())  # type: ignore[arg-type]
        return
    with pytest.raises(SelectionError, match=said) as refused:
        check_possible(selection, Windows())  # type: ignore[arg-type]
    assert refused.value.hint


def test_a_member_that_the_group_does_not_have_is_said() -> None:
    source = SlowRun(TRAINED).source
    check_member(Selection(sample=SampleRef(run=None, group=GROUP, member=1)), source)
    with pytest.raises(SelectionError, match="has 2 members, from 0 on; there is no member 99"):
        check_member(Selection(sample=SampleRef(run=None, group=GROUP, member=99)), source)
    check_member(Selection(sample=SampleRef(run=None, group=99999, member=99)), source)


def test_an_id_that_is_nowhere_is_an_error_that_says_where_it_was_looked_for() -> None:
    source = SlowRun(TRAINED).source
    with pytest.raises(SelectionError, match=r"nothing of sample 99999/0 was found.*partition 1 of prompts, samples"):
        explain_nothing(Selection(sample=SampleRef(run=None, group=99999, member=0)), source)
    said = explain_nothing(Selection(group=GROUP, values=(2.0, None)), source)
    assert "nothing of group 5 was found; looked for on partition 1 of rewards, shadow-rewards" in said
    assert explain_nothing(Selection(values=(2.0, None)), source) == ""
