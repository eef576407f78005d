"""Checks of samples and rewards: what the ledger used exists, and what should be scored is scored.

Which rewards must exist: those an outcome used, with the very value; in a sealed run, one per good sample and reward
that scored others (on `shadow-rewards` while it had no weight: weights may change between the phases of a run); in a
run that goes on, one for each good sample that `behind_limit` later samples of its partition overtook (a scorer works
on some samples at a time and finishes out of order, so fewer are no loss yet).
"""

from __future__ import annotations

import numpy as np

from ops.audit.columns import NO_KEY, Ints, Keys, Mask
from ops.audit.facts import Facts
from ops.audit.findings import Findings, Kind
from schemas.references import HAS_REFERENCE


def check_samples(facts: Facts, findings: Findings) -> None:
    """Every sample that an outcome or a reward speaks of is on the samples topic."""
    by_outcome = _without_sample(facts, facts.member_keys, groups=facts.member_groups)
    rewards = facts.fold.rewards
    reward_keys, reward_groups = rewards.keys("key"), rewards.ints("group")
    named = np.isin(reward_keys, facts.member_keys[by_outcome])
    by_reward = np.flatnonzero(_without_sample_mask(facts, reward_keys, groups=reward_groups) & ~named)
    by_reward = by_reward[np.unique(reward_keys[by_reward], return_index=True)[1]]
    members, offsets = rewards.ints("member"), rewards.ints("offset")

    def of_outcome(index: int) -> tuple[str, str]:
        row = int(by_outcome[index])
        group = int(facts.member_groups[row])
        result = facts.fold.words.word(int(facts.member_results[row]))
        said = f"{facts.outcome_place(int(facts.member_outcomes[row]))} says {result}"
        what = facts.name(group, int(facts.member_numbers[row]))
        return what, f"{said}, no such record on {_on('samples', facts, group=group)}"

    def of_reward(index: int) -> tuple[str, str]:
        row = int(by_reward[index])
        group = int(reward_groups[row])
        said = f"scored by {_on('rewards', facts, group=group)} offset {offsets[row]}"
        return facts.name(group, int(members[row])), f"{said}, no such record on {_on('samples', facts, group=group)}"

    findings.add_all(Kind.MISSING_SAMPLE, by_outcome.tolist(), describe=of_outcome)
    findings.add_all(Kind.MISSING_SAMPLE, by_reward.tolist(), describe=of_reward)


def check_used_rewards(facts: Facts, findings: Findings) -> None:
    """Every reward value that an outcome used is on the rewards topic."""
    uses, rewards = facts.fold.uses, facts.fold.rewards
    member_rows = uses.ints("member_row")
    judged = facts.in_window(facts.member_groups)[member_rows]
    keys = uses.keys("key_valued")
    absent = np.flatnonzero(judged & ~np.isin(keys, rewards.keys("key_valued")))
    absent = absent[np.unique(keys[absent], return_index=True)[1]]
    has_other = np.isin(uses.keys("key_named")[absent], rewards.keys("key_named"))
    names = uses.ints("name")

    def describe(index: int) -> tuple[str, str]:
        row = int(member_rows[absent[index]])
        group = int(facts.member_groups[row])
        name = facts.fold.reward_names.word(int(names[absent[index]]))
        said = "has only other values of it" if has_other[index] else "has no record of it"
        what = f"{facts.name(group, int(facts.member_numbers[row]))} reward {name}"
        place = facts.outcome_place(int(facts.member_outcomes[row]))
        return what, f"used by {place}, {_on('rewards', facts, group=group)} {said}"

    findings.add_all(Kind.MISSING_REWARD, absent.tolist(), describe=describe)


def check_references(facts: Facts, findings: Findings) -> None:
    """What was trained by a lineage with a reference model has its log-probabilities on reference-scores."""
    with_one = [number for number, each in facts.fold.lineages.items() if each.facts.get(HAS_REFERENCE) == "true"]
    scores = facts.fold.scores
    scored = scores.keys("key")[scores.ints("good") == 1]
    trained = facts.member_trained & np.isin(facts.outcome_lineages[facts.member_outcomes], with_one)
    absent = trained & ~np.isin(facts.member_keys, scored) & facts.in_window(facts.member_groups)
    rows = np.flatnonzero(absent)

    def describe(index: int) -> tuple[str, str]:
        row = int(rows[index])
        group = int(facts.member_groups[row])
        place = facts.outcome_place(int(facts.member_outcomes[row]))
        said = f"trained by {place}, {_on('reference-scores', facts, group=group)} has no log-probabilities of it"
        return facts.name(group, int(facts.member_numbers[row])), said

    findings.add_all(Kind.MISSING_REFERENCE, rows.tolist(), describe=describe)


def check_scored(facts: Facts, findings: Findings, *, behind_limit: int) -> int:
    """Good samples without a reward of a name that scored others; returns how many may be on their way."""
    return sum(
        _check_scored_by(facts, findings, number=number, behind_limit=behind_limit)
        for number in np.unique(facts.fold.rewards.ints("name")).tolist()
    )


def _check_scored_by(facts: Facts, findings: Findings, *, number: int, behind_limit: int) -> int:
    samples, rewards = facts.fold.samples, facts.fold.rewards
    name = facts.fold.reward_names.word(number)
    groups, keys = samples.ints("group"), samples.keys("key")
    shadow = facts.fold.shadow
    is_scored = np.isin(keys, rewards.keys("key")[rewards.ints("name") == number])
    is_scored |= np.isin(keys, shadow.keys("key")[shadow.ints("name") == number])
    unscored = (samples.ints("good") == 1) & ~is_scored & facts.in_window(groups)
    unscored &= ~_is_used(facts, keys, number=number)  # named already by `check_used_rewards`
    overtaken = _num_scored_later(groups % facts.fold.data_partitions, samples.ints("offset"), is_scored=is_scored)
    lost = unscored if facts.is_sealed else unscored & (overtaken > behind_limit)
    rows = np.flatnonzero(lost)
    rows = rows[np.unique(keys[rows], return_index=True)[1]]
    members, offsets = samples.ints("member"), samples.ints("offset")

    def describe(index: int) -> tuple[str, str]:
        row = int(rows[index])
        group = int(groups[row])
        why = "the run is sealed" if facts.is_sealed else f"{overtaken[row]} later ones of its partition are scored"
        what = f"{facts.name(group, int(members[row]))} reward {name}"
        place = f"{_on('samples', facts, group=group)} offset {offsets[row]}"
        return what, f"no record on {_on('rewards', facts, group=group)} for {place}, and {why}"

    findings.add_all(Kind.MISSING_REWARD, rows.tolist(), describe=describe)
    return int(np.unique(keys[unscored & ~lost]).size)


def _is_used(facts: Facts, sample_keys: Keys, *, number: int) -> Mask:
    """Per sample: an outcome used a value of this reward for it."""
    uses = facts.fold.uses
    rows = uses.ints("member_row")[uses.ints("name") == number]
    return np.isin(sample_keys, facts.member_keys[rows])


def _num_scored_later(partitions: Ints, offsets: Ints, *, is_scored: Mask) -> Ints:
    """Per sample: how many later samples of its partition are scored."""
    order = np.lexsort((offsets, partitions))
    later = np.zeros(len(order), dtype=np.int64)
    for partition in np.unique(partitions).tolist():
        rows = order[partitions[order] == partition]
        scored = is_scored[rows].astype(np.int64)
        later[rows] = scored[::-1].cumsum()[::-1] - scored
    return later


def _without_sample(facts: Facts, keys: Keys, *, groups: Ints) -> Ints:
    """Rows, one per identity, whose sample is not on the topic."""
    rows = np.flatnonzero(_without_sample_mask(facts, keys, groups=groups))
    return rows[np.unique(keys[rows], return_index=True)[1]]


def _without_sample_mask(facts: Facts, keys: Keys, *, groups: Ints) -> Mask:
    absent: Mask = (keys != NO_KEY) & ~np.isin(keys, facts.sample_keys) & facts.in_window(groups)
    return absent


def _on(topic: str, facts: Facts, *, group: int) -> str:
    return f"{topic}[{group % facts.fold.data_partitions}]"
