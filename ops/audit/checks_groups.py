"""Checks of groups: prompts are dense, each group closes once, each id trains once, ages and versions are allowed."""

from __future__ import annotations

import numpy as np

from ops.audit.columns import NO_AGE, Ints, Mask, left_out
from ops.audit.facts import Facts
from ops.audit.findings import Findings, Kind


def check_prompts(facts: Facts, findings: Findings) -> None:
    """Numbers are dense up to the highest that any topic speaks of, and none is there twice."""
    fold, partitions = facts.fold, facts.fold.data_partitions
    spoken = {
        "an outcome": facts.outcome_groups,
        "a reward": fold.rewards.ints("group"),
        "a sample": fold.samples.ints("group"),
    }
    referred = np.unique(np.concatenate([facts.prompt_groups, *spoken.values()]))
    top = int(facts.prompt_groups[-1]) if facts.prompt_groups.size else -1
    gaps = left_out(facts.prompt_groups, first=0) if facts.prompt_groups.size else facts.prompt_groups
    wanted = np.union1d(gaps, referred)
    missing = np.setdiff1d(wanted[facts.in_window(wanted)], facts.prompt_groups)

    def describe(index: int) -> tuple[str, str]:
        group = int(missing[index])
        sources = [name for name, groups in spoken.items() if bool((groups == group).any())]
        why = f"{' and '.join(sources)} of it exists" if sources else f"numbers go up to {top}"
        return facts.name(group), f"no record on prompts[{group % partitions}], but {why}"

    findings.add_all(Kind.MISSING_PROMPT, missing.tolist(), describe=describe)
    groups = fold.prompts.ints("group")
    _repeated(facts, findings, groups=groups, kind=Kind.REPEATED, why="the group has {count} prompt records")


def check_closed_once(facts: Facts, findings: Findings) -> None:
    """At most one surviving outcome per group."""
    groups = facts.outcome_groups[facts.surviving]
    _repeated(facts, findings, groups=groups, kind=Kind.CLOSED_TWICE, why="{count} outcomes in the surviving history")


def check_trained_once(facts: Facts, findings: Findings) -> None:
    """At most one trained member row per sample id."""
    rows = np.flatnonzero(facts.member_trained)
    ids = np.stack([facts.member_groups[rows], facts.member_numbers[rows]], axis=1)
    unique, counts = np.unique(ids, axis=0, return_counts=True)
    twice = np.flatnonzero(counts > 1)

    def describe(index: int) -> tuple[str, str]:
        group, member = unique[twice[index]]
        return facts.name(group, member), f"trained {counts[twice[index]]} times in the surviving history"

    findings.add_all(Kind.TRAINED_TWICE, twice.tolist(), describe=describe)


def check_members(facts: Facts, findings: Findings) -> None:
    """Each surviving outcome speaks of members 0 .. G-1 exactly once."""
    inside = _inside(facts)
    wanted = facts.sizes_of(facts.outcome_groups)
    rows = np.flatnonzero(inside)
    pairs = np.stack([facts.member_outcomes[rows], facts.member_numbers[rows]], axis=1)
    distinct = np.unique(pairs, axis=0)[:, 0]
    num_rows = np.bincount(facts.member_outcomes[rows], minlength=len(wanted))
    num_distinct = np.bincount(distinct, minlength=len(wanted))
    wrong = np.flatnonzero(facts.surviving & (wanted > 0) & ((num_rows != wanted) | (num_distinct != wanted)))

    def describe(index: int) -> tuple[str, str]:
        outcome = int(wrong[index])
        said = f"{num_rows[outcome]} entries for {num_distinct[outcome]} members, the group has {wanted[outcome]}"
        return facts.name(int(facts.outcome_groups[outcome])), f"{facts.outcome_place(outcome)} has {said}"

    findings.add_all(Kind.WRONG_MEMBERS, wrong.tolist(), describe=describe)


def trained_ages(facts: Facts) -> Ints:
    """Age of each trained member, in versions: as recorded, or as its step and birth step say, whichever is higher."""
    rows = np.flatnonzero(facts.member_trained)
    recorded = facts.fold.members.ints("age")[rows]
    births = facts.fold.members.ints("step")[rows]
    derived = np.where(births < 0, NO_AGE, facts.outcome_steps[facts.member_outcomes[rows]] - 1 - births)
    ages: Ints = np.maximum(recorded, derived)
    return ages


def check_ages(facts: Facts, findings: Findings, *, max_age: int | None) -> None:
    """No trained member is older than the bound; None: there is none."""
    if max_age is None:
        return
    ages = trained_ages(facts)
    rows = np.flatnonzero(facts.member_trained)
    over = np.flatnonzero(ages > max_age)

    def describe(index: int) -> tuple[str, str]:
        row = int(rows[over[index]])
        why = f"trained at age {ages[over[index]]} by {facts.outcome_place(int(facts.member_outcomes[row]))}"
        return _member_name(facts, row), f"{why}, the bound is {max_age}"

    findings.add_all(Kind.OVER_AGE, over.tolist(), describe=describe)


def check_versions(facts: Facts, findings: Findings) -> None:
    """Every trained member was born of a version of the surviving history."""
    lineages, steps = facts.fold.members.ints("lineage"), facts.fold.members.ints("step")
    dead = np.flatnonzero(facts.member_trained & ~facts.survives(lineages, steps))

    def describe(index: int) -> tuple[str, str]:
        row = int(dead[index])
        known = f"of version {lineages[row]}.{steps[row]}" if lineages[row] >= 0 else "of no known version"
        place = facts.outcome_place(int(facts.member_outcomes[row]))
        return _member_name(facts, row), f"trained by {place}, born {known}, which the surviving history lacks"

    findings.add_all(Kind.VERSION_NOT_SURVIVING, dead.tolist(), describe=describe)


def _inside(facts: Facts) -> Mask:
    """Member rows of surviving outcomes whose number is inside the group; others are strays and no id of the run."""
    numbers = facts.member_numbers
    sizes = facts.sizes_of(facts.member_groups)
    return facts.member_surviving & (numbers >= 0) & (numbers < sizes)


def _member_name(facts: Facts, row: int) -> str:
    return facts.name(int(facts.member_groups[row]), int(facts.member_numbers[row]))


def _repeated(facts: Facts, findings: Findings, *, groups: Ints, kind: Kind, why: str) -> None:
    unique, counts = np.unique(groups, return_counts=True)
    twice = np.flatnonzero(counts > 1)

    def describe(index: int) -> tuple[str, str]:
        return facts.name(int(unique[twice[index]])), why.format(count=counts[twice[index]])

    findings.add_all(kind, twice.tolist(), describe=describe)
