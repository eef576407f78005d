"""Which groups and versions survive, for any tree of lineages and any order of reading."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.history import ClosedSet, LedgerView, Lineages
from schemas.errors import RecordInvalid
from schemas.records import LedgerSealed, LineageStarted, Outcome, Version


def lineage(number: int, *, parent: int, branch: int, seq: int = 0) -> LineageStarted:
    return LineageStarted(
        run="r", lineage=number, parent=parent, branch_step=branch, seq=seq, holder="h", started_unix_ms=0
    )


def outcome(group: int, *, at: tuple[int, int], seq: int = 0, result: str = "trained") -> Outcome:
    return Outcome(
        run="r", group=group, lineage=at[0], step=at[1], seq=seq, result=result, members=(), closed_unix_ms=0
    )


def test_a_path_ends_at_the_lowest_branch_step_on_the_way() -> None:
    lineages = Lineages()
    assert lineages.current == 0
    assert not lineages.survives(1, 0)
    lineages.add(lineage(1, parent=0, branch=0))
    lineages.add(lineage(2, parent=1, branch=9))
    lineages.add(lineage(3, parent=2, branch=4))
    assert lineages.current == 3
    assert lineages.survives(3, 1000)
    assert lineages.survives(2, 4)
    assert not lineages.survives(2, 5)
    assert lineages.survives(1, 4)
    assert not lineages.survives(1, 5), "3 left 2 at step 4, so steps 5 to 9 of 1 are no part of it"
    assert not lineages.survives(7, 0)


def test_a_parent_of_which_nothing_is_left_survives_up_to_the_branch() -> None:
    lineages = Lineages()
    lineages.add(lineage(4, parent=3, branch=7))
    assert lineages.is_known(3)
    assert lineages.survives(3, 7)
    assert not lineages.survives(3, 8)
    assert not lineages.is_known(2)


def test_a_lineage_without_parent_forgets_all_before_it() -> None:
    view = LedgerView(1)
    view.add(0, lineage(1, parent=0, branch=0))
    view.add(0, outcome(0, at=(1, 1)))
    view.add(0, lineage(2, parent=0, branch=0))
    assert not view.is_closed(0)
    assert (view.num_closed, view.step) == (0, 0)


def test_a_lineage_reopens_what_became_void_and_a_later_one_can_return_to_it() -> None:
    view = LedgerView(1)
    view.add(0, lineage(1, parent=0, branch=0))
    for group, step in ((0, 1), (1, 2), (2, 3)):
        view.add(0, outcome(group, at=(1, step)))
    assert (view.num_closed, view.step) == (3, 3)
    view.add(0, lineage(2, parent=1, branch=1))
    assert [view.is_closed(n) for n in range(3)] == [True, False, False]
    assert view.step == 1
    view.add(0, outcome(2, at=(2, 2)))
    assert [view.is_closed(n) for n in range(3)] == [True, False, True]
    view.add(0, lineage(3, parent=1, branch=2))
    assert [view.is_closed(n) for n in range(3)] == [True, True, False]
    assert view.step == 2


def test_drops_close_groups_but_make_no_step() -> None:
    view = LedgerView(2)
    view.add(0, lineage(1, parent=0, branch=0))
    view.add(0, outcome(2, at=(1, 4), result="dropped"))
    assert view.is_closed(2)
    assert not view.is_closed(0)
    assert view.step == 0


def test_a_seal_holds_until_the_next_lineage() -> None:
    view = LedgerView(1)
    view.add(0, lineage(1, parent=0, branch=0))
    seal = LedgerSealed(run="r", lineage=1, step=3, seq=1, num_groups=0, reason="done", sealed_unix_ms=0)
    view.add(0, seal)
    seals, seqs = [view.sealed], [view.next_seq(0)]
    view.add(0, lineage(2, parent=1, branch=3, seq=2))
    seals.append(view.sealed)
    seqs.append(view.next_seq(0))
    assert seals == [seal, None]
    assert seqs == [2, 3]


def test_an_outcome_on_a_wrong_partition_is_refused_naming_both() -> None:
    view = LedgerView(4)
    with pytest.raises(RecordInvalid, match=r"group 6 on ledger partition 1.* belongs on 2"):
        view.add(1, outcome(6, at=(1, 1)))


def _ledger(seed: int, partitions: int) -> list[list[LineageStarted | Outcome]]:
    """A random tree of lineages with outcomes, as each partition holds it."""
    rng = random.Random(seed)
    logs: list[list[LineageStarted | Outcome]] = [[] for _ in range(partitions)]
    for number in range(1, 6):
        parent = rng.randrange(number)
        branch = rng.randrange(6) if parent else 0
        for log in logs:
            log.append(lineage(number, parent=parent, branch=branch, seq=len(log)))
        for _ in range(rng.randrange(20)):
            group = rng.randrange(30)
            log = logs[group % partitions]
            log.append(outcome(group, at=(number, branch + rng.randrange(1, 5)), seq=len(log)))
    return logs


@pytest.mark.parametrize("seed", range(40))
def test_any_interleaving_and_repetition_of_partitions_gives_the_same_view(seed: int) -> None:
    logs = _ledger(seed, 3)
    views = []
    for order_seed in range(3):
        rng = random.Random(order_seed)
        view = LedgerView(3)
        cursors = [0, 0, 0]
        while open_ones := [p for p in range(3) if cursors[p] < len(logs[p])]:
            partition = rng.choice(open_ones)
            record = logs[partition][cursors[partition]]
            view.add(partition, record)
            if rng.random() < 0.2:
                view.add(partition, record)
            cursors[partition] += 1
        views.append((view.closed.to_json(), view.step, [view.next_seq(p) for p in range(3)]))
    assert views[0] == views[1] == views[2]
    last = LedgerView(3)
    for partition, log in enumerate(logs):
        for record in log:
            last.add(partition, record)
    outcomes = [record for log in logs for record in log if isinstance(record, Outcome)]
    expected = {o.group for o in outcomes if last.lineages.survives(o.lineage, o.step)}
    assert {n for n in range(30) if last.is_closed(n)} == expected == {n for n in range(30) if n in last.closed}
    assert views[0][0] == last.closed.to_json()


@given(st.lists(st.integers(min_value=0, max_value=60)))
def test_a_closed_set_is_a_set(numbers: list[int]) -> None:
    closed = ClosedSet(numbers)
    assert len(closed) == len(set(numbers))
    assert {n for n in range(70) if n in closed} == set(numbers)
    assert ClosedSet.from_json(closed.to_json()) == closed == closed.copy()
    assert closed.watermark == next(n for n in range(70) if n not in set(numbers))


def test_a_closed_set_in_order_keeps_only_its_watermark() -> None:
    closed = ClosedSet(range(1000))
    assert closed.to_json() == {"watermark": 1000, "above": []}


@pytest.mark.parametrize("values", [{}, {"watermark": 1}, {"watermark": -1, "above": []}, {"above": [1]}])
def test_a_malformed_closed_set_is_refused(values: dict[str, int | list[int]]) -> None:
    with pytest.raises(ValueError, match="watermark"):
        ClosedSet.from_json(values)


def version(lineage: int, step: int) -> Version:
    return Version(lineage=lineage, step=step)


def test_the_horizon_is_the_last_step_trained_in_the_surviving_history() -> None:
    view = LedgerView(1)
    assert [view.horizon] == [None]
    assert not view.is_made(version(1, 0))
    view.add(0, lineage(1, parent=0, branch=0))
    assert view.horizon == version(1, 0), "version 0 is published before anything is trained"
    view.add(0, outcome(0, at=(1, 3), result="dropped"))
    assert view.horizon == version(1, 0), "a drop carries the step in progress"
    view.add(0, outcome(1, at=(1, 3)))
    assert view.horizon == version(1, 3)
    assert view.is_made(version(1, 2))
    assert view.is_made(version(1, 3))
    assert not view.is_made(version(1, 4))
    assert not view.is_made(version(1, 2**62))
    assert not view.is_made(version(2, 3))


def test_a_new_lineage_has_come_as_far_as_its_branch() -> None:
    view = LedgerView(1)
    view.add(0, lineage(1, parent=0, branch=0))
    view.add(0, outcome(0, at=(1, 9)))
    view.add(0, lineage(2, parent=1, branch=5))
    assert view.horizon == version(2, 5), "what a restored learner publishes first"
    assert view.is_made(version(2, 5))
    assert view.is_made(version(1, 5))
    assert not view.is_made(version(1, 6))
    assert not view.is_made(version(2, 6))
    view.add(0, outcome(1, at=(2, 6)))
    assert view.is_made(version(2, 6))
    view.add(0, lineage(7, parent=0, branch=0))
    assert view.horizon == version(7, 0), "a history without parent begins anew"


def test_a_parent_that_the_ledger_forgot_still_says_how_far_it_came() -> None:
    view = LedgerView(1)
    view.add(0, lineage(4, parent=3, branch=7))
    assert view.horizon == version(4, 7)
