"""What an outcome says of itself and of its samples: each lie is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ops.audit.findings import Kind
from schemas.records import LedgerSealed, MemberOutcome, Outcome, Sample
from tests.unit.ops.little_run import little_run, prompt, sample, version
from tests.unit.ops.test_audit_fold import found, outcome_of, report_of
from topics.catalog import PROMPTS, SAMPLES

Change = Callable[[MemberOutcome], MemberOutcome]


def of_first(change: Change) -> Callable[[Outcome], Outcome]:
    return lambda record: replace(record, members=(change(record.members[0]), *record.members[1:]))


def of_all(change: Change) -> Callable[[Outcome], Outcome]:
    return lambda record: replace(record, members=tuple(map(change, record.members)))


@pytest.mark.parametrize(
    ("change", "findings"),
    [
        (lambda record: replace(record, result="dropped"), {(Kind.WRONG_MEMBERS, "little/4")}),
        (of_all(lambda m: replace(m, result="dropped", reason="stale")), {(Kind.WRONG_MEMBERS, "little/4")}),
        (
            lambda record: replace(record, attempt="another try"),
            {(Kind.MIXED_ATTEMPTS, "little/4/0"), (Kind.MIXED_ATTEMPTS, "little/4/1")},
        ),
        (of_first(lambda m: replace(m, rewards=())), {(Kind.MISSING_REWARD, "little/4/0")}),
        (of_first(lambda m: replace(m, version=version("2.1"), age=0)), {(Kind.WRONG_VERSION, "little/4/0")}),
        (of_first(lambda m: replace(m, version=version("2.9"), age=0)), {(Kind.WRONG_VERSION, "little/4/0")}),
    ],
)
def test_an_outcome_that_contradicts_itself_or_its_sample_is_named(
    change: Callable[[Outcome], Outcome], findings: set[tuple[Kind, str]]
) -> None:
    run = little_run()
    run.change(Outcome, outcome_of(4, 2), change)
    assert found(report_of(run)) == findings


def test_members_of_two_attempts_in_one_trained_group_are_named_though_both_were_sampled() -> None:
    run = little_run()
    run.put(SAMPLES, replace(sample(4, 0, born="1.1"), attempt="another try"))
    run.change(Outcome, outcome_of(4, 2), of_first(lambda m: replace(m, attempt="another try")))
    assert (Kind.MIXED_ATTEMPTS, "little/4/0") in found(report_of(run))


def test_a_failure_that_was_trained_is_named() -> None:
    run = little_run()
    run.change(Sample, lambda record: (record.group, record.member) == (4, 1), lambda one: replace(one, failure="x"))
    assert (Kind.WRONG_MEMBERS, "little/4/1") in found(report_of(run))


def test_one_wild_number_is_named_and_does_not_fill_memory() -> None:
    run = little_run()
    run.put(PROMPTS, prompt(10**12))
    run.change(LedgerSealed, lambda _: True, lambda record: replace(record, seq=2**60))
    seen = found(report_of(run))
    assert (Kind.MISSING_PROMPT, "little/6") in seen
    assert any(kind is Kind.MISSING_LEDGER for kind, _ in seen)
