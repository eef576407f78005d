"""The audit as a fold over hand-made logs: what balances, and each kind of finding with what it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ops.audit.findings import KEPT_PER_KIND, Findings, Kind
from ops.audit.fold import Fold, Place
from ops.audit.report import AuditReport, AuditSettings, judge
from ops.audit.show import as_json, lines_of
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, PromptGroup, Record, Reward, Sample
from tests.unit.ops.little_run import (
    PARTITIONS,
    RUN,
    LittleRun,
    little_run,
    prompt,
    reward,
    sample,
    trained,
    version,
)
from topics.catalog import LEDGER, PROMPTS, REWARDS, SAMPLES, SHADOW_REWARDS, WEIGHTS

Windows = dict[tuple[str, int], tuple[int, int]]


def report_of(run: LittleRun, *, max_age: int | None = 2, behind_limit: int = 1000, **earliest: int) -> AuditReport:
    fold = Fold(PARTITIONS)
    windows: Windows = {}
    for topic, partition, offset, record in run:
        low = earliest.get(f"{topic.name}_{partition}", 0)
        windows[topic.name, partition] = (low, low + offset + 1)
        fold.add(Place(topic=topic.name, partition=partition, offset=low + offset), record, key=None)
    for text in run.tombstones:
        fold.add(Place(topic=WEIGHTS.name, partition=0, offset=99), None, key=text.encode())
    fold.note_published()  # as if the weights had been read first
    settings = AuditSettings(max_age=max_age, behind_limit=behind_limit)
    return judge(fold, windows=windows, settings=settings, run=RUN)


def found(report: AuditReport) -> set[tuple[Kind, str]]:
    return {(each.kind, each.what) for each in report.findings}


def of_group(group: int) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, PromptGroup | Sample | Reward | Outcome) and record.group == group


def outcome_of(group: int, lineage: int) -> Callable[[Outcome], bool]:
    return lambda outcome: (outcome.group, outcome.lineage) == (group, lineage)


def of_member(group: int, member: int) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, Sample | Reward) and (record.group, record.member) == (group, member)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_whole_run_balances_with_a_restart_in_it(sealed: bool) -> None:
    report = report_of(little_run(sealed=sealed))
    assert report.balanced, [str(each) for each in report.findings]
    assert (report.produced, report.trained, report.open) == (12, 8, 0)
    assert report.dropped == {"group_dropped": 1, "never_arrived": 2}
    assert report.failed == {"engine_failed": 1}
    assert report.max_trained_age == 1
    assert [(each.lineage, each.survives_to is not None, each.num_void) for each in report.lineages] == [
        (1, True, 2),
        (2, True, 0),
    ]


def test_a_group_without_an_outcome_is_open_in_a_run_that_goes_on() -> None:
    run = little_run(sealed=False)
    run.put(PROMPTS, prompt(6))
    run.put(PROMPTS, prompt(7))
    report = report_of(run)
    assert report.balanced
    assert (report.produced, report.open, report.open_groups) == (16, 4, 2)


def test_open_groups_under_a_seal_are_named() -> None:
    run = little_run()
    run.put(PROMPTS, prompt(6))
    assert found(report_of(run)) == {(Kind.OPEN_AFTER_SEAL, "little/6")}


@pytest.mark.parametrize("group", range(6))
def test_a_missing_prompt_is_named(group: int) -> None:
    run = little_run()
    run.take(PROMPTS, of_group(group))
    assert (Kind.MISSING_PROMPT, f"little/{group}") in found(report_of(run))


@pytest.mark.parametrize(("group", "member"), [(group, member) for group in range(5) for member in (0, 1)])
def test_a_missing_sample_is_named_once(group: int, member: int) -> None:
    run = little_run()
    run.take(SAMPLES, of_member(group, member))
    assert found(report_of(run)) == {(Kind.MISSING_SAMPLE, f"little/{group}/{member}")}


def test_a_missing_sample_that_only_a_reward_speaks_of_is_named() -> None:
    run = little_run()
    run.put(REWARDS, replace(reward(0, 1), attempt="a try that lost"))
    assert found(report_of(run)) == {(Kind.MISSING_SAMPLE, "little/0/1")}


@pytest.mark.parametrize(("group", "member"), [(0, 0), (1, 1), (2, 0), (3, 1), (4, 1)])
def test_a_missing_reward_is_named_once(group: int, member: int) -> None:
    run = little_run()
    run.take(REWARDS, of_member(group, member))
    assert found(report_of(run)) == {(Kind.MISSING_REWARD, f"little/{group}/{member} reward exact")}


def test_a_reward_with_another_value_than_the_one_used_is_named() -> None:
    run = little_run()
    run.take(REWARDS, of_member(0, 0))
    run.put(REWARDS, reward(0, 0, value=0.5))
    (finding,) = report_of(run).findings
    assert finding.kind is Kind.MISSING_REWARD
    assert "only other values" in finding.why


def test_further_copies_of_samples_and_rewards_change_nothing() -> None:
    run = little_run()
    run.put(SAMPLES, sample(0, 0))
    run.put(REWARDS, reward(0, 0))
    run.put(REWARDS, reward(0, 0, value=0.25))
    assert report_of(run).balanced


def unused(run: LittleRun, group: int) -> None:
    """A losing attempt of a group: samples that no outcome speaks of."""
    run.put(SAMPLES, replace(sample(group, 0), attempt="late"))


def test_a_sample_that_a_sealed_run_did_not_score_is_named() -> None:
    run = little_run()
    unused(run, 0)
    assert found(report_of(run)) == {(Kind.MISSING_REWARD, "little/0/0 reward exact")}


def test_a_sample_that_was_scored_while_the_reward_had_no_weight_is_none() -> None:
    run = little_run()
    unused(run, 0)
    run.put(SHADOW_REWARDS, replace(reward(0, 0), attempt="late", weight=0.0))
    assert report_of(run).balanced
    run.take(SHADOW_REWARDS, lambda _: True)
    run.put(SHADOW_REWARDS, replace(reward(0, 0, name="other"), attempt="late", weight=0.0))
    assert not report_of(run).balanced


def test_a_sample_not_scored_yet_is_no_finding_until_enough_later_ones_are() -> None:
    run = little_run(sealed=False)
    unused(run, 0)
    waiting = report_of(run, behind_limit=1)
    assert waiting.balanced
    assert waiting.not_scored_yet == 1
    for number in range(2):
        run.put(SAMPLES, replace(sample(0, 0), attempt=f"later-{number}"))
        run.put(REWARDS, replace(reward(0, 0), attempt=f"later-{number}"))
    assert report_of(run, behind_limit=2).balanced
    assert found(report_of(run, behind_limit=1)) == {(Kind.MISSING_REWARD, "little/0/0 reward exact")}


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("partition", [0, 1])
def test_a_missing_ledger_record_is_named_by_its_number(partition: int, index: int) -> None:
    run = little_run()
    gone = run.records[LEDGER.name, partition].pop(index)
    assert isinstance(gone, Outcome | LineageStarted)
    assert (Kind.MISSING_LEDGER, f"ledger[{partition}] seq {gone.seq}") in found(report_of(run))


@pytest.mark.parametrize("partition", [0, 1])
def test_a_seal_that_one_partition_lacks_is_named(partition: int) -> None:
    run = little_run()
    assert isinstance(run.records[LEDGER.name, partition].pop(), LedgerSealed)
    assert found(report_of(run)) == {(Kind.MISSING_LEDGER, f"ledger[{partition}] LedgerSealed of lineage 2")}


def test_a_seal_that_counts_other_groups_is_named() -> None:
    run = little_run()
    for _ in range(2):
        run.change(LedgerSealed, lambda seal: seal.num_groups == 6, lambda seal: replace(seal, num_groups=7))
    assert found(report_of(run)) == {(Kind.MISSING_LEDGER, "seal of lineage 2")}


def test_outcomes_of_a_lineage_nobody_started_are_named() -> None:
    run = little_run()
    for _ in range(2):
        run.take(LEDGER, lambda record: isinstance(record, LineageStarted) and record.lineage == 2)
    assert (Kind.UNKNOWN_LINEAGE, "lineage 2") in found(report_of(run))


def test_a_ledger_number_used_twice_is_named() -> None:
    run = little_run(sealed=False)
    run.put(PROMPTS, prompt(6))
    run.put(LEDGER, replace(trained(6, at="2.2", seq=5), members=(), result="dropped"))
    assert (Kind.REPEATED, "ledger[0] seq 5") in found(report_of(run))


def test_a_group_closed_and_trained_twice_is_named() -> None:
    run = little_run(sealed=False)
    run.put(LEDGER, trained(0, at="2.2", seq=6))
    seen = found(report_of(run))
    assert (Kind.CLOSED_TWICE, "little/0") in seen
    assert {(Kind.TRAINED_TWICE, "little/0/0"), (Kind.TRAINED_TWICE, "little/0/1")} <= seen
    assert any(kind is Kind.UNBALANCED for kind, _ in seen)


def test_an_age_over_the_bound_is_named_whatever_the_record_says() -> None:
    run = little_run()
    run.change(
        Outcome,
        outcome_of(2, 2),
        lambda record: replace(record, members=tuple(replace(m, age=0) for m in record.members)),
    )
    assert found(report_of(run, max_age=0)) == {(Kind.OVER_AGE, "little/2/0"), (Kind.OVER_AGE, "little/2/1")}
    assert report_of(run, max_age=None).balanced


def test_a_version_the_surviving_history_lacks_is_named() -> None:
    run = little_run()
    run.change(
        Outcome,
        outcome_of(4, 2),
        lambda record: replace(record, members=tuple(replace(m, version=version("1.2")) for m in record.members)),
    )
    kinds = {kind for kind, _ in found(report_of(run))}
    assert kinds == {Kind.VERSION_NOT_SURVIVING, Kind.WRONG_VERSION}


def test_an_outcome_that_leaves_a_member_out_does_not_balance() -> None:
    run = little_run()
    run.change(Outcome, outcome_of(4, 2), lambda record: replace(record, members=record.members[:1]))
    seen = found(report_of(run))
    assert (Kind.WRONG_MEMBERS, "little/4") in seen
    assert (Kind.UNBALANCED, "12 ids produced") in seen


def test_strays_are_counted_and_no_id_of_the_run() -> None:
    run = little_run()
    run.put(SAMPLES, replace(sample(4, 9, failure="engine_failed")))
    run.change(
        Outcome,
        outcome_of(4, 2),
        lambda record: replace(
            record,
            members=(
                *record.members,
                replace(record.members[0], member=9, result="dropped", reason="bad_group_size", rewards=()),
            ),
        ),
    )
    report = report_of(run)
    assert report.balanced
    assert (report.produced, report.strays) == (12, 1)


def of_version(text: str) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, Manifest) and record.version == version(text)


def test_a_trained_version_without_a_manifest_is_named_unless_it_was_pruned() -> None:
    run = little_run()
    run.take(WEIGHTS, of_version("1.1"))
    assert found(report_of(run)) == {(Kind.MISSING_MANIFEST, "version 1.1")}
    run.tombstones.append("1.1")
    assert report_of(run).balanced
    run.tombstones.clear()  # compaction took the tombstones of the oldest away
    assert report_of(run).balanced
    run.take(WEIGHTS, of_version("2.2"))
    assert found(report_of(run)) == {(Kind.MISSING_MANIFEST, "version 2.2")}


def test_a_record_on_another_groups_partition_is_named() -> None:
    run = little_run()
    run.put(SAMPLES, sample(0, 0), partition=1)
    assert found(report_of(run)) == {(Kind.WRONG_PARTITION, "samples[1] offset 4")}


def test_groups_below_what_retention_left_are_not_judged() -> None:
    run = little_run(sealed=False)
    run.take(PROMPTS, of_group(0))
    for member in (0, 1):
        run.take(SAMPLES, of_member(0, member))
    report = report_of(run, prompts_0=1, samples_0=2)
    assert report.balanced, [str(each) for each in report.findings]
    assert report.is_truncated
    assert report.produced == 10


def test_undecodable_records_are_counted() -> None:
    fold = Fold(PARTITIONS)
    fold.add_undecodable(Place(topic="samples", partition=0, offset=3))
    report = judge(fold, windows={}, settings=AuditSettings(), run=RUN)
    assert report.undecodable == {"samples": 1}


def test_half_visible_transactions_show() -> None:
    fold = Fold(PARTITIONS)
    run = little_run()
    for topic, partition, offset, record in run:
        if topic is not LEDGER or partition == 0:
            fold.add(Place(topic=topic.name, partition=partition, offset=offset), record, key=None)
    assert fold.ledger_is_ragged
    assert not fold.prompts_are_ragged
    assert not fold.weights_are_behind


def test_text_names_the_first_findings_and_counts_the_rest() -> None:
    run = little_run()
    for partition in (0, 1):
        run.records[SAMPLES.name, partition].clear()
        run.records[REWARDS.name, partition].clear()
    report = report_of(run)
    lines = list(lines_of(report))
    assert any("UNACCOUNTED" in line for line in lines)
    assert sum(line.startswith("  missing_") for line in lines) == min(20, report.num_findings)
    assert as_json(report)["balanced"] is False
    assert [line for line in lines_of(report_of(little_run())) if len(line) > 80] == []


def test_findings_count_all_and_keep_some() -> None:
    findings = Findings()
    findings.add_all(Kind.MISSING_SAMPLE, range(10_000), describe=lambda index: (str(index), "gone"))
    assert findings.num_total == 10_000
    assert len(findings.kept()) == KEPT_PER_KIND


def test_a_ledger_cut_short_is_found_by_the_versions_published() -> None:
    run = little_run(sealed=False)
    last = max((each.lineage, each.step) for *_, each in run if isinstance(each, Outcome) and each.result == "trained")
    for (topic, _), records in run.records.items():
        if topic == LEDGER.name:
            records[:] = [e for e in records if not (isinstance(e, Outcome) and (e.lineage, e.step) == last)]
    assert (Kind.MISSING_LEDGER, f"step {last[1]} of lineage {last[0]}") in found(report_of(run))
