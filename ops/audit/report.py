"""The verdict: counts, window and findings of one audit, as a value, as JSON and as text for people.

Invariants: ids produced = trained + dropped + failed + open over the groups of the window, or it is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ops.audit import checks_groups, checks_ledger, checks_outcomes, checks_records
from ops.audit.facts import Facts
from ops.audit.findings import KEPT_PER_KIND, Finding, Findings, Kind
from ops.audit.fold import Fold, Windows
from schemas.reasons import Result

SHOWN = 20
_BEHIND_LIMIT = 1024  # four times the default of rewards.NAME.max_in_flight


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What the topics do not say.

    Attributes:
        max_age: most versions between birth and training; None: no bound, or none known.
        behind_limit: see `ops.audit.checks_records`.
        kept_per_kind: findings of a kind that are kept as text; all are counted.
    """

    max_age: int | None = None
    behind_limit: int = _BEHIND_LIMIT
    kept_per_kind: int = KEPT_PER_KIND


@dataclass(frozen=True, kw_only=True)
class LineageSeen:
    """One lineage of the ledger."""

    lineage: int
    parent: int
    branch_step: int
    survives_to: int | None  # last step on the surviving path; None: no step of it is on the path
    num_void: int  # outcomes that do not count any more


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit says."""

    run: str
    records_of: str  # run name inside the records
    num_groups: int
    produced: int  # ids
    trained: int
    dropped: Mapping[str, int]  # by reason
    failed: Mapping[str, int]
    other: Mapping[str, int]  # results this version has no word for
    open: int
    open_groups: int
    strays: int  # samples with a member number outside their group: dropped, but no id of the run
    max_trained_age: int | None
    age_bound: int | None
    not_scored_yet: int  # good samples of a run that goes on, awaiting a reward
    step: int
    sealed: bool
    lineages: tuple[LineageSeen, ...]
    records: Mapping[str, int]  # read, per topic
    undecodable: Mapping[str, int]
    windows: Windows
    is_truncated: bool
    num_findings: int
    findings_by_kind: Mapping[Kind, int]
    findings: tuple[Finding, ...]

    @property
    def balanced(self) -> bool:
        """Whether everything is accounted for."""
        return self.num_findings == 0


def judge(fold: Fold, *, windows: Windows, settings: AuditSettings, run: str) -> AuditReport:
    """Run every check over what was folded.

    Args:
        fold: after the last record.
        windows: offsets read, per topic and partition.
        settings: see `AuditSettings`.
        run: name the audit was asked for.
    """
    facts, findings = Facts(fold, windows), Findings(kept_per_kind=settings.kept_per_kind)
    checks_groups.check_prompts(facts, findings)
    checks_records.check_samples(facts, findings)
    checks_records.check_used_rewards(facts, findings)
    checks_records.check_references(facts, findings)
    awaiting = checks_records.check_scored(facts, findings, behind_limit=settings.behind_limit)
    checks_ledger.check_sequence(facts, findings)
    checks_ledger.check_spread(facts, findings)
    checks_ledger.check_lineages(facts, findings)
    checks_ledger.check_seal(facts, findings)
    checks_ledger.check_manifests(facts, findings)
    checks_ledger.check_published(facts, findings)
    checks_groups.check_closed_once(facts, findings)
    checks_groups.check_trained_once(facts, findings)
    checks_groups.check_members(facts, findings)
    checks_groups.check_versions(facts, findings)
    checks_outcomes.check_results(facts, findings)
    checks_outcomes.check_one_attempt(facts, findings)
    checks_outcomes.check_trained_samples(facts, findings)
    checks_outcomes.check_birth(facts, findings)
    checks_groups.check_ages(facts, findings, max_age=settings.max_age)
    misplaced = fold.misplaced
    findings.add_all(
        Kind.WRONG_PARTITION, range(misplaced.count), describe=lambda index: misplaced.examples[min(index, 19)]
    )
    return _report(facts, findings, settings=settings, run=run, awaiting=awaiting)


def _report(facts: Facts, findings: Findings, *, settings: AuditSettings, run: str, awaiting: int) -> AuditReport:
    fold = facts.fold
    judged = facts.in_window(facts.prompt_groups)
    produced = int(facts.prompt_sizes[judged].sum())
    still_open = checks_ledger.open_groups(facts)
    num_open = int(facts.sizes_of(still_open).sum())
    sums, strays = _sums(facts)
    trained = sum(sums.pop(Result.TRAINED, {}).values())
    dropped, failed = sums.pop(Result.DROPPED, {}), sums.pop(Result.FAILED, {})
    other = {f"{result}: {reason}": count for result, by in sums.items() for reason, count in by.items()}
    accounted = trained + num_open + sum((*dropped.values(), *failed.values(), *other.values()))
    if accounted != produced:
        why = f"{accounted} are trained, dropped, failed or open"
        findings.add(Kind.UNBALANCED, f"{produced} ids produced", why=why)
    ages = checks_groups.trained_ages(facts)
    return AuditReport(
        run=run,
        records_of=fold.run,
        num_groups=int(judged.sum()),
        produced=produced,
        trained=trained,
        dropped=dropped,
        failed=failed,
        other=other,
        open=num_open,
        open_groups=len(still_open),
        strays=strays,
        max_trained_age=int(ages.max()) if ages.size else None,
        age_bound=settings.max_age,
        not_scored_yet=awaiting,
        step=fold.ledger_view.step,
        sealed=facts.is_sealed,
        lineages=_lineages(facts),
        records={
            "ledger": len(fold.ledger),
            "rewards": len(fold.rewards),
            "reference-scores": len(fold.scores),
            "samples": len(fold.samples),
            "prompts": len(fold.prompts),
        },
        undecodable=dict(fold.undecodable),
        windows=facts.windows,
        is_truncated=facts.is_truncated,
        num_findings=findings.num_total,
        findings_by_kind=dict(findings.counts),
        findings=findings.kept(),
    )


def _sums(facts: Facts) -> tuple[dict[str, dict[str, int]], int]:
    """Members of surviving outcomes of groups with a prompt, by result and reason; and how many are strays."""
    words = facts.fold.words
    sizes = facts.sizes_of(facts.member_groups)
    counted = facts.member_surviving & (sizes > 0)
    outside = (facts.member_numbers < 0) | (facts.member_numbers >= sizes)
    rows = counted & ~outside
    pairs = np.stack([facts.member_results[rows], facts.fold.members.ints("reason")[rows]], axis=1)
    unique, counts = np.unique(pairs, axis=0, return_counts=True)
    sums: dict[str, dict[str, int]] = {}
    for (result, reason), count in zip(unique.tolist(), counts.tolist(), strict=True):
        sums.setdefault(words.word(result), {})[words.word(reason)] = count
    return sums, int((counted & outside).sum())


def _lineages(facts: Facts) -> tuple[LineageSeen, ...]:
    limits = facts.fold.ledger_view.lineages.limits
    void = facts.outcome_lineages[~facts.survives(facts.outcome_lineages, facts.outcome_steps)]
    return tuple(
        LineageSeen(
            lineage=number,
            parent=started.parent,
            branch_step=started.branch_step,
            survives_to=limits.get(number),
            num_void=int((void == number).sum()),
        )
        for number, started in sorted(facts.fold.lineages.items())
    )
