"""Checks of what an outcome says of itself, and of the samples it says were trained.

A trained group has trained members, all of the one attempt that won (promise 4); each of them is a completion, scored
by at least one reward, and born of the version that its own sample names, so that an age cannot be made up.
"""

from __future__ import annotations

import numpy as np

from ops.audit.columns import Ints, Keys
from ops.audit.facts import Facts
from ops.audit.findings import Findings, Kind

_PRIME_LINEAGE, _PRIME_STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # products wrap around


def check_results(facts: Facts, findings: Findings) -> None:
    """A surviving outcome is trained if, and only if, one of its members is."""
    is_trained = facts.fold.outcomes.ints("trained") == 1
    num_trained = np.bincount(facts.member_outcomes[facts.member_trained], minlength=len(is_trained))
    wrong = np.flatnonzero(facts.surviving & (is_trained != (num_trained > 0)))

    def describe(index: int) -> tuple[str, str]:
        outcome = int(wrong[index])
        said = "trained" if is_trained[outcome] else "not trained"
        why = f"{facts.outcome_place(outcome)} says {said}, with {num_trained[outcome]} trained members"
        return facts.name(int(facts.outcome_groups[outcome])), why

    findings.add_all(Kind.WRONG_MEMBERS, wrong.tolist(), describe=describe)


def check_one_attempt(facts: Facts, findings: Findings) -> None:
    """Trained members are of the attempt that the outcome names."""
    attempts = facts.fold.outcomes.keys("key_attempt")[facts.member_outcomes]
    rows = np.flatnonzero(facts.member_trained & (facts.fold.members.keys("key_attempt") != attempts))
    findings.add_all(
        Kind.MIXED_ATTEMPTS,
        rows.tolist(),
        describe=lambda index: _told(facts, int(rows[index]), why="of another attempt"),
    )


def check_trained_samples(facts: Facts, findings: Findings) -> None:
    """A trained member is a completion, and was rewarded."""
    samples = facts.fold.samples
    keys, good = samples.keys("key"), samples.ints("good") == 1
    without = facts.member_trained & np.isin(facts.member_keys, keys[~good]) & ~np.isin(facts.member_keys, keys[good])
    failures = np.flatnonzero(without)
    findings.add_all(
        Kind.WRONG_MEMBERS,
        failures.tolist(),
        describe=lambda index: _told(facts, int(failures[index]), why="though its sample is a failure"),
    )
    rewarded = np.zeros(len(facts.member_keys), dtype=np.bool_)
    rewarded[facts.fold.uses.ints("member_row")] = True
    bare = np.flatnonzero(facts.member_trained & ~rewarded)
    findings.add_all(
        Kind.MISSING_REWARD,
        bare.tolist(),
        describe=lambda index: _told(facts, int(bare[index]), why="without any reward"),
    )


def check_birth(facts: Facts, findings: Findings) -> None:
    """The version of a trained member is that of its sample, and was there before the step."""
    members, samples = facts.fold.members, facts.fold.samples
    trained = np.flatnonzero(facts.member_trained & np.isin(facts.member_keys, facts.sample_keys))
    said = _births(facts.member_keys, lineages=members.ints("lineage"), steps=members.ints("step"))[trained]
    true = _births(samples.keys("key"), lineages=samples.ints("lineage"), steps=samples.ints("step"))
    late = members.ints("step")[trained] >= facts.outcome_steps[facts.member_outcomes[trained]]
    false = ~np.isin(said, true)
    rows = trained[late | false]
    steps, lineages = members.ints("step"), members.ints("lineage")
    findings.add_all(
        Kind.WRONG_VERSION,
        rows.tolist(),
        describe=lambda index: _told(
            facts,
            int(rows[index]),
            why=f"born of {lineages[rows[index]]}.{steps[rows[index]]}, which its sample is not",
        ),
    )


def _births(keys: Keys, *, lineages: Ints, steps: Ints) -> Keys:
    """Hashes of (sample, lineage, step)."""
    mixed: Keys = keys ^ (lineages.astype(np.uint64) * _PRIME_LINEAGE + steps.astype(np.uint64) * _PRIME_STEP)
    return mixed


def _told(facts: Facts, row: int, *, why: str) -> tuple[str, str]:
    place = facts.outcome_place(int(facts.member_outcomes[row]))
    what = facts.name(int(facts.member_groups[row]), int(facts.member_numbers[row]))
    return what, f"trained by {place}, {why}"
