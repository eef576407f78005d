"""Checks of the ledger itself: dense per partition, whole transactions, one seal, a manifest per trained step."""

from __future__ import annotations

import numpy as np

from ops.audit.columns import Ints, left_out
from ops.audit.facts import Facts
from ops.audit.findings import Findings, Kind
from topics.catalog import LEDGER


def check_sequence(facts: Facts, findings: Findings) -> None:
    """Sequence numbers of each partition are 0, 1, 2, ... (from the first retained one on), each once."""
    partitions, numbers = facts.fold.ledger.ints("partition"), facts.fold.ledger.ints("seq")
    for partition in range(facts.fold.data_partitions):
        own = numbers[partitions == partition]
        earliest = facts.windows.get((LEDGER.name, partition), (0, 0))[0]
        _check_dense(findings, own, partition=partition, is_truncated=earliest > 0)


def check_spread(facts: Facts, findings: Findings) -> None:
    """LineageStarted and LedgerSealed are on every partition."""
    fold = facts.fold
    for what, spread in (("LineageStarted", fold.lineage_partitions), ("LedgerSealed", fold.seal_partitions)):
        for lineage, partitions in sorted(spread.items()):
            for partition in sorted(set(range(fold.data_partitions)) - partitions):
                if facts.windows.get((LEDGER.name, partition), (0, 0))[0] == 0:
                    why = f"{len(partitions)} of {fold.data_partitions} partitions have it, this one does not"
                    findings.add(Kind.MISSING_LEDGER, f"ledger[{partition}] {what} of lineage {lineage}", why=why)


def check_seal(facts: Facts, findings: Findings) -> None:
    """A seal counts the groups that are closed, and nothing is open under it."""
    sealed = facts.fold.ledger_view.sealed
    if sealed is None:
        return
    num_closed = facts.fold.ledger_view.num_closed
    if sealed.num_groups != num_closed and not facts.is_truncated:
        why = f"it counts {sealed.num_groups} closed groups, the outcomes close {num_closed}"
        findings.add(Kind.MISSING_LEDGER, f"seal of lineage {sealed.lineage}", why=why)
    still_open = open_groups(facts)

    def describe(index: int) -> tuple[str, str]:
        return facts.name(int(still_open[index])), "it has a prompt and no outcome, and the run is sealed"

    findings.add_all(Kind.OPEN_AFTER_SEAL, still_open.tolist(), describe=describe)


def check_lineages(facts: Facts, findings: Findings) -> None:
    """Every outcome is of a lineage whose start is on the ledger."""
    lineages = facts.fold.ledger_view.lineages
    for lineage in np.unique(facts.outcome_lineages).tolist():
        if not lineages.is_known(lineage):
            why = f"{int((facts.outcome_lineages == lineage).sum())} outcomes are of it, no LineageStarted is"
            findings.add(Kind.UNKNOWN_LINEAGE, f"lineage {lineage}", why=why)


def check_manifests(facts: Facts, findings: Findings) -> None:
    """Every trained step of the surviving history has a manifest, or its tombstone.

    The topic is compacted: old versions get tombstones, and these vanish, too, the oldest first. So a version is missed
    only if an older one is still spoken of.
    """
    seen = facts.fold.weights_seen
    if not seen:
        return
    trained = facts.surviving & (facts.fold.outcomes.ints("trained") == 1)
    pairs = {*zip(facts.outcome_lineages[trained].tolist(), facts.outcome_steps[trained].tolist(), strict=True)}
    for lineage, step in sorted(pairs - seen):
        if (lineage, step) > min(seen):
            why = f"step {step} was trained, and `weights` has neither a manifest nor a tombstone of it"
            findings.add(Kind.MISSING_MANIFEST, f"version {lineage}.{step}", why=why)


def check_published(facts: Facts, findings: Findings) -> None:
    """Every version published before the ledger was read has its step, or its lineage's start, in the ledger."""
    if any(topic == LEDGER.name and earliest > 0 for (topic, _), (earliest, _) in facts.windows.items()):
        return

    def describe(index: int) -> tuple[str, str]:
        lineage, step = unwritten[index]
        return (
            f"step {step} of lineage {lineage}",
            "its version was published, the ledger has no trained group of it",
        )

    unwritten = facts.fold.unwritten
    findings.add_all(Kind.MISSING_LEDGER, list(range(len(unwritten))), describe=describe)


def open_groups(facts: Facts) -> Ints:
    """Groups in the window with a prompt and no surviving outcome."""
    closed = facts.outcome_groups[facts.surviving]
    unclosed = np.setdiff1d(facts.prompt_groups, closed)
    return unclosed[facts.in_window(unclosed)]


def _check_dense(findings: Findings, numbers: Ints, *, partition: int, is_truncated: bool) -> None:
    if numbers.size == 0:
        return
    unique, counts = np.unique(numbers, return_counts=True)
    first = int(unique[0]) if is_truncated else 0
    missing = left_out(unique[unique >= first], first=first)
    twice = unique[counts > 1]

    def gap(index: int) -> tuple[str, str]:
        return f"ledger[{partition}] seq {missing[index]}", f"the partition's numbers go up to {unique[-1]}"

    def repeat(index: int) -> tuple[str, str]:
        return f"ledger[{partition}] seq {twice[index]}", "more than one record has this number"

    findings.add_all(Kind.MISSING_LEDGER, missing.tolist(), describe=gap)
    findings.add_all(Kind.REPEATED, twice.tolist(), describe=repeat)
