"""The audit and the reference model: what was trained with it was scored by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ops.audit.findings import Kind
from schemas.packed import pack_f32
from schemas.records import LineageStarted, ReferenceScore
from schemas.references import HAS_REFERENCE
from tests.unit.ops.little_run import PARTITIONS, LittleRun, little_run, sample
from tests.unit.ops.test_audit_fold import found, report_of
from topics.catalog import REFERENCE_SCORES

TRAINED = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1)]


def score(group: int, member: int, *, failure: str | None = None) -> ReferenceScore:
    made = sample(group, member)
    return ReferenceScore(
        run=made.run,
        group=group,
        member=member,
        attempt=made.attempt,
        model_digest="0" * 64,
        logprobs=pack_f32([-1.0]) if failure is None else None,
        failure=failure,
        sample_offset=0,
        scored_unix_ms=0,
        producer="q",
    )


def run_with(scores: Iterable[ReferenceScore], *, has_reference: bool = True) -> LittleRun:
    run = little_run()
    for records in run.records.values():
        for index, record in enumerate(records):
            if has_reference and isinstance(record, LineageStarted):
                records[index] = replace(record, facts={HAS_REFERENCE: "true"})
    for each in scores:
        run.put(REFERENCE_SCORES, each, partition=each.group % PARTITIONS)
    return run


def test_all_scored_balances() -> None:
    report = report_of(run_with(score(*place) for place in TRAINED))
    assert report.balanced, [str(each) for each in report.findings]


def test_what_was_trained_without_a_score_or_with_a_failed_one_is_named() -> None:
    scores = [score(*place) for place in TRAINED[2:]] + [score(*TRAINED[1], failure="too long")]
    kind = Kind.MISSING_REFERENCE
    assert found(report_of(run_with(scores))) == {(kind, "little/0/0"), (kind, "little/0/1")}


def test_a_run_without_a_reference_model_needs_none() -> None:
    assert report_of(run_with([], has_reference=False)).balanced
