"""Groups without a signal: dropped with a reason, replaced, and never without a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.learner.settings import LearnerSettings
from consumers.learner.setup import no_signal_limit, steps_are_signal
from schemas.packed import pack_f32, pack_i32
from schemas.records import Record, Version
from tests.unit.consumers.learner.material import G, assembler, fates, feed, prompt, results, reward, sample

FLAT = "dropped(no_signal)"


def scored(group: int, values: list[float], *, born: Version | None = None) -> list[Record]:
    made: list[Record] = [prompt(group)]
    for member, value in enumerate(values):
        each = sample(group, member)
        made += [each if born is None else sample(group, member, born=born), reward(group, member, value=value)]
    return made


def mixed(group: int) -> list[Record]:
    return scored(group, [float(member % 2) for member in range(G)])


def flat(group: int, value: float = 1.0) -> list[Record]:
    return scored(group, [value] * G)


def test_a_flat_group_is_dropped_at_once_and_gives_every_id_its_reason() -> None:
    target = assembler(no_signal_limit=8)
    feed(target, [*flat(0), *mixed(1)])
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: FLAT}
    assert results(drafts) == {FLAT: G}
    assert [use.value for member in drafts[0].members for use in member.rewards] == [1.0] * G
    assert target.num_completed == 2, "rollouts and rewards did their work: that is progress"
    batch = target.cut(0, 1)
    assert batch is not None
    assert [group.group for group in batch.groups] == [1]


def test_without_the_setting_it_is_trained() -> None:
    target = assembler()
    feed(target, flat(0))
    assert target.take_outcomes() == []
    assert target.num_ready == 1


def test_no_more_than_the_bound_is_dropped_until_a_step_was_trained() -> None:
    target = assembler(no_signal_limit=2)
    feed(target, [record for group in range(4) for record in flat(group)])
    assert fates(target.take_outcomes()) == {0: FLAT, 1: FLAT}
    batch = target.cut(0, 2)
    assert batch is not None
    target.mark_trained(batch)
    assert fates(target.take_outcomes()) == {2: "trained", 3: "trained"}
    feed(target, flat(4))
    assert fates(target.take_outcomes()) == {4: FLAT}


def test_a_group_that_is_flat_once_members_are_left_out_is_dropped_at_the_cut() -> None:
    """The one member with another reward is of a version that nobody knows."""
    target = assembler(no_signal_limit=2, min_group_members=2)
    records = scored(0, [0.0] * (G - 1))
    records += [sample(0, G - 1, born=Version(lineage=9, step=0)), reward(0, G - 1, value=1.0)]
    feed(target, records)
    assert target.take_outcomes() == []
    assert target.cut(0, 1) is None
    drafts = target.take_outcomes()
    assert fates(drafts) == {0: FLAT}
    assert results(drafts) == {FLAT: G - 1, "dropped(future_version)": 1}


@pytest.mark.parametrize("by_step", [False, True])
def test_steps_that_differ_are_a_signal_to_who_looks_at_them(by_step: bool) -> None:
    target = assembler(no_signal_limit=2, steps_are_signal=by_step)
    records: list[Record] = [prompt(0)]
    for member in range(G):
        steps = pack_f32([float(member), 1.0 - member])
        records += [replace(sample(0, member), turns=pack_i32([1, 2]), step_rewards=steps), reward(0, member)]
    feed(target, records)
    assert fates(target.take_outcomes()) == ({} if by_step else {0: FLAT})


def test_ranks_share_the_bound_and_it_is_off_by_default() -> None:
    assert no_signal_limit(LearnerSettings(), groups_per_step=8) == 0
    one = LearnerSettings(no_signal="drop", no_signal_batches=2)
    assert no_signal_limit(one, groups_per_step=8) == 16
    assert no_signal_limit(one.model_copy(update={"ranks": 3}), groups_per_step=8) == 6


def test_step_advantages_and_plug_ins_look_at_steps() -> None:
    assert not steps_are_signal(LearnerSettings())
    assert steps_are_signal(LearnerSettings(algorithm="step_grpo"))
    assert not steps_are_signal(LearnerSettings(algorithm="step_grpo", advantage="grpo"))
    assert steps_are_signal(LearnerSettings(advantage="mine.py:ranked"))
