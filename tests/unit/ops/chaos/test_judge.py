"""What a verdict says of hand-made logs: audit and oracle over the same records, held against what was destroyed."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from ops.chaos.judge import Verdict
from ops.chaos.oracle import Body, Ledger, compare
from ops.chaos.world import Doomed
from schemas.records import LedgerSealed, LineageStarted, Outcome, PromptGroup
from tests.unit.ops.little_run import RUN, LittleRun, little_run, trained
from tests.unit.ops.test_audit_fold import of_group, of_member, outcome_of, report_of
from topics.catalog import LEDGER, PROMPTS, REWARDS, SAMPLES, Topic

TRAINED: dict[tuple[int, int], tuple[int, ...]] = {
    (1, 1): (0, 1),
    (2, 2): (2, 4),
}  # (lineage, step) -> groups, as the learner noted them


def said_of(run: LittleRun, noted: dict[tuple[int, int], tuple[int, ...]]) -> dict[str, set[str]]:
    ledger, prompts = Ledger(), list[Body]()
    for _, _, _, record in run:
        if isinstance(record, LineageStarted | Outcome | LedgerSealed):
            ledger.add(type(record).__name__, asdict(record))
        elif isinstance(record, PromptGroup):
            prompts.append(asdict(record))
    lines = {at: [f"{RUN}/{group}/{member}" for group in groups for member in (0, 1)] for at, groups in noted.items()}
    said = compare(prompts, ledger, lines=lines)
    return {name: set(ids) for name, ids in said.items() if isinstance(ids, list)}


def verdict_of(
    run: LittleRun,
    *,
    doomed: Doomed | None = None,
    noted: dict[tuple[int, int], tuple[int, ...]] | None = None,
    told: frozenset[str] = frozenset(),
    closed: frozenset[int] = frozenset(range(6)),
) -> Verdict:
    verdict, doomed = Verdict(), Doomed() if doomed is None else doomed
    verdict.add_audit(report_of(run), doomed=doomed)
    said = said_of(run, TRAINED if noted is None else noted)
    verdict.add_oracle(said, doomed=doomed, told=set(told), is_closed=closed.__contains__)
    return verdict


def test_a_run_that_balances_has_no_finding() -> None:
    verdict = verdict_of(little_run())
    assert verdict.broken == verdict.announced == set()
    assert verdict.audited == 12


@pytest.mark.parametrize("topic", [SAMPLES, REWARDS])
def test_a_record_that_is_gone_is_lost_unless_a_fault_destroyed_it(topic: Topic) -> None:
    run, name = little_run(), topic.name
    run.take(topic, of_member(2, 0))
    lost = verdict_of(run)
    assert len(lost.lost) == 1
    assert f"{RUN}/2/0" in next(iter(lost.lost))
    doomed = Doomed()
    doomed.add(name, {f"{RUN}/2/0", f"{RUN}/2/0 reward exact"}, num_records=1)
    known = verdict_of(run, doomed=doomed)
    assert known.broken == set()
    assert [each.split()[:2] for each in known.announced] == [[name, f"{RUN}/2/0"]]


def test_another_record_than_the_destroyed_one_is_lost() -> None:
    run, doomed = little_run(), Doomed()
    run.take(SAMPLES, of_member(2, 0))
    doomed.add(SAMPLES.name, {f"{RUN}/4/1"}, num_records=1)
    assert len(verdict_of(run, doomed=doomed).lost) == 1


def test_a_prompt_that_went_after_its_group_was_closed_is_no_loss_to_the_oracle() -> None:
    run, doomed = little_run(), Doomed()
    run.take(PROMPTS, of_group(0))
    doomed.add(PROMPTS.name, {f"{RUN}/0"}, num_records=1)
    verdict = verdict_of(run, doomed=doomed)
    assert not [each for each in verdict.lost if "oracle" in each]


def test_a_prompt_destroyed_before_its_group_was_closed_must_be_told_of() -> None:
    run, doomed = little_run(sealed=False), Doomed()
    run.take(PROMPTS, of_group(5))
    run.take(LEDGER, lambda record: isinstance(record, Outcome) and record.group == 5)
    run.put(PROMPTS, replace(_prompt(run, 4), group=6))  # a later number shows that 5 is missing
    doomed.add(PROMPTS.name, {f"{RUN}/5"}, num_records=1)
    open_ones = frozenset({0, 1, 2, 3, 4})
    silent = verdict_of(run, doomed=doomed, closed=open_ones)
    assert f"oracle: {RUN}/5, destroyed and not told of" in silent.lost
    told = verdict_of(run, doomed=doomed, closed=open_ones, told=frozenset({PROMPTS.name}))
    assert f"{PROMPTS.name} {RUN}/5" in told.announced
    assert not [each for each in told.lost if "oracle" in each]


def test_an_id_that_two_steps_trained_is_twice() -> None:
    run = little_run(sealed=False)
    run.put(LEDGER, trained(0, at="2.3", seq=6))
    assert {f"{RUN}/0/0", f"{RUN}/0/1"} <= verdict_of(run).twice


def test_an_id_that_the_learner_noted_twice_is_twice_whatever_the_ledger_says() -> None:
    verdict = verdict_of(little_run(), noted={**TRAINED, (2, 2): (2, 4, 0)})
    assert verdict.twice == {f"{RUN}/0/0", f"{RUN}/0/1"}


def test_notes_and_ledger_that_disagree_are_unaccounted() -> None:
    fewer = verdict_of(little_run(), noted={(1, 1): (0, 1), (2, 2): (2,)})
    assert fewer.unaccounted == {f"only_in_ledger: {RUN}/4/0", f"only_in_ledger: {RUN}/4/1"}
    more = verdict_of(little_run(), noted={**TRAINED, (2, 2): (2, 4, 3)})
    assert more.unaccounted == {f"only_in_oracle: {RUN}/3/0", f"only_in_oracle: {RUN}/3/1"}


def test_an_outcome_that_contradicts_its_sample_is_unaccounted() -> None:
    run = little_run()
    run.change(Outcome, outcome_of(4, 2), lambda one: replace(one, attempt="another try"))
    verdict = verdict_of(run)
    assert verdict.unaccounted
    assert all("mixed_attempts" in each for each in verdict.unaccounted)


def test_two_looks_count_a_finding_once() -> None:
    run, verdict = little_run(), Verdict()
    run.take(SAMPLES, of_member(2, 0))
    for _ in range(2):
        verdict.add_audit(report_of(run), doomed=Doomed())
    assert len(verdict.lost) == 1


def _prompt(run: LittleRun, group: int) -> PromptGroup:
    return next(record for _, _, _, record in run if isinstance(record, PromptGroup) and record.group == group)
