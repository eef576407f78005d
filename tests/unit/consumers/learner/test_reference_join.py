"""What the reference model says of samples is joined as rewards are: in any order, once, and never made up."""

from __future__ import annotations

import itertools
import math

import pytest

from consumers.learner.batch import TrainMember
from consumers.learner.groups import REFERENCE
from schemas.packed import pack_f32
from schemas.records import Record, ReferenceScore
from tests.unit.consumers.learner.material import (
    G,
    assembler,
    fates,
    feed,
    let_pass,
    prompt,
    record_counts,
    results,
    reward,
    sample,
    score,
)
from topics.clock import ManualClock


def member_records(number: int) -> list[Record]:
    return [sample(0, number), reward(0, number), score(0, number, value=-1.0 - number)]


def members(target_records: list[Record]) -> list[TrainMember]:
    target = assembler(needs_reference=True)
    feed(target, [prompt(0), *target_records])
    batch = target.cut(0, 1)
    assert batch is not None
    return list(batch.members)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_order_gives_each_member_its_own(order: tuple[int, ...]) -> None:
    kinds = [[member_records(number)[kind] for number in range(G)] for kind in order]
    found = members([record for kind in kinds for record in kind])
    assert [each.reference for each in found] == [pack_f32([-1.0 - number] * 2) for number in range(G)]


def test_a_group_waits_for_it_and_says_so() -> None:
    target = assembler(needs_reference=True)
    feed(target, [prompt(0), *(record for number in range(G) for record in member_records(number)[:2])])
    assert target.num_ready == 0
    assert target.waiting().num_unscored == {REFERENCE: G}
    feed(target, [score(0, number) for number in range(G)])
    assert target.num_ready == 1


def test_the_first_copy_counts() -> None:
    target = assembler(needs_reference=True)
    records = [record for number in range(G) for record in member_records(number)]
    feed(target, [prompt(0), *records[:3], score(0, 0, value=-9.0), *records[3:], score(0, 1, value=-9.0)])
    batch = target.cut(0, 1)
    assert batch is not None
    assert next(iter(batch.members)).reference == pack_f32([-1.0] * 2)
    assert record_counts(target)[("duplicates", "reference-scores")] == 2


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (score(0, 0, failure="too long"), "too long"),
        (score(0, 0, num_tokens=3), "12 bytes do not fit the completion"),
        (score(0, 0, value=math.nan), "8 bytes do not fit the completion"),
    ],
)
def test_a_failure_ends_the_member_with_its_reason(bad: ReferenceScore, why: str) -> None:
    target = assembler(needs_reference=True)
    rest = [record for number in range(1, G) for record in member_records(number)]
    feed(target, [prompt(0), sample(0, 0), reward(0, 0), bad, *rest])
    assert results(target.take_outcomes())[f"failed(reference_failed: {why})"] == 1


def test_at_the_deadline_a_member_without_it_was_not_scored() -> None:
    clock = ManualClock()
    target = assembler(needs_reference=True, clock=clock)
    records = [record for number in range(1, G) for record in member_records(number)]
    feed(target, [prompt(0), *records, sample(0, 0), reward(0, 0)])
    let_pass(target, clock, 101.0)
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: f"dropped(incomplete: {G - 1}/{G})"}
    assert results(drafts)["dropped(not_scored)"] == 1


def test_without_a_reference_model_scores_are_counted_and_ignored() -> None:
    target = assembler()
    feed(target, [prompt(0), *(record for number in range(G) for record in member_records(number))])
    batch = target.cut(0, 1)
    assert batch is not None
    assert {each.reference for each in batch.members} == {None}
