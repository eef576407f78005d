"""Ages, the bound at the cut, the three modes, eviction, and versions that do not survive."""

from __future__ import annotations

from consumers.learner.assembler import Assembler
from consumers.learner.staleness import age_of, version_problem
from schemas.records import Record, Version, VersionRun
from tests.unit.consumers.learner.material import (
    assembler,
    fates,
    feed,
    let_pass,
    lineages,
    prompt,
    results,
    reward,
    sample,
    version,
    whole,
)
from topics.clock import ManualClock


def scored(group: int, member: int, *, born: Version, attempt: str = "a") -> list[Record]:
    return [sample(group, member, born=born, attempt=attempt), reward(group, member, attempt=attempt)]


def pair(group: int, *births: Version) -> list[Record]:
    records: list[Record] = [prompt(group, size=len(births))]
    return records + [each for member, born in enumerate(births) for each in scored(group, member, born=born)]


def test_a_groups_age_is_its_oldest_members_and_a_samples_its_oldest_runs() -> None:
    """Case 33."""
    target = assembler(eta=5)
    feed(target, [prompt(0, size=2), *scored(0, 0, born=version(4))])
    feed(target, [sample(0, 1, born=(version(3), version(5))), reward(0, 1)])
    batch = target.cut(5, 1)
    assert batch is not None
    (group,) = batch.groups
    assert [(m.age, m.version.step) for m in group.members] == [(1, 4), (2, 3)]
    assert group.age == batch.max_age == 2


def test_oldest_birth_goes_first_and_ties_by_number() -> None:
    target = assembler(eta=9)
    for group, born in ((0, 5), (1, 3), (2, 4), (3, 3)):
        feed(target, whole(group, born=version(born)))
    order = []
    for _ in range(4):
        batch = target.cut(5, 1)
        assert batch is not None
        order.append(batch.groups[0].group)
    assert order == [1, 3, 2, 0]


def test_drop_closes_what_is_over_the_bound_at_the_cut_and_not_before() -> None:
    target = assembler(eta=2)
    feed(target, pair(0, version(0), version(1)))
    assert target.cut(2, 2) is None
    assert target.take_outcomes() == []
    assert target.cut(3, 2) is None
    (draft,) = target.take_outcomes()
    assert fates([draft]) == {0: "dropped(stale)"}
    assert [(m.reason, m.age) for m in draft.members] == [("stale", 3), ("group_dropped", 2)]


def test_train_has_no_bound() -> None:
    target = assembler(eta=0, on_stale="train")
    feed(target, whole(0))
    target.evict(50)
    batch = target.cut(50, 1)
    assert batch is not None
    assert batch.max_age == 50


def _waiting(births: dict[int, int], *, eta: int) -> tuple[Assembler, ManualClock]:
    """Groups 0.. whole, born as given; group 100 has one of two members, born at 0."""
    clock = ManualClock()
    target = assembler(eta=eta, on_stale="wait", clock=clock)
    for group, born in births.items():
        feed(target, whole(group, born=version(born)))
    feed(target, [prompt(100, size=2), *scored(100, 0, born=version(0))])
    return target, clock


def test_wait_holds_the_cut_until_the_open_group_is_ready_and_takes_it_first() -> None:
    target, _ = _waiting({0: 1, 1: 1, 2: 2}, eta=2)
    batch = target.cut(1, 1)
    assert batch is not None, "the open group may still be trained at step 2"
    target.mark_trained(batch)
    assert target.cut(2, 2) is None
    blocked = [target.blocked_by]
    feed(target, scored(100, 1, born=version(2)))
    batch = target.cut(2, 2)
    assert batch is not None
    blocked.append(target.blocked_by)
    assert blocked == [100, None]
    assert [group.group for group in batch.groups] == [1, 100]
    assert batch.max_age == 2


def test_wait_ends_with_the_deadline_of_the_open_group() -> None:
    target, clock = _waiting({0: 2}, eta=2)
    assert target.cut(2, 1) is None
    let_pass(target, clock, 100)
    assert target.cut(2, 1) is not None
    assert fates(target.take_outcomes()) == {100: "dropped(incomplete: 1/2)"}


def test_wait_does_not_wait_for_a_group_that_is_lost_anyway() -> None:
    target, _ = _waiting({0: 3}, eta=2)
    assert target.cut(3, 1) is not None, "it is over the bound already"
    target, _ = _waiting({0: 2}, eta=2)
    feed(target, [sample(100, 1, failure="aborted")])
    assert target.cut(2, 1) is not None, "it was dropped for lack of members"
    target = assembler(eta=2, on_stale="wait")
    feed(target, [*whole(0, born=version(2)), prompt(1, size=3)])
    feed(target, [*scored(1, 0, born=version(0)), sample(1, 1, failure="aborted")])
    assert target.cut(2, 1) is not None, "it can no longer have enough members"


def test_wait_keeps_the_bound_when_more_groups_reach_it_than_fit_a_batch() -> None:
    target = assembler(eta=1, on_stale="wait")
    for group in range(3):
        feed(target, whole(group))
    batch = target.cut(1, 2)
    assert batch is not None
    target.mark_trained(batch)
    assert target.cut(2, 1) is None
    assert fates(target.take_outcomes()) == {0: "trained", 1: "trained", 2: "dropped(stale)"}


def test_evict_closes_incomplete_groups_whose_freshest_attempt_is_too_old() -> None:
    target = assembler(eta=1)
    feed(target, [prompt(0, size=2), *scored(0, 0, born=version(0))])
    feed(target, [prompt(1, size=2), *scored(1, 0, born=version(0)), *scored(1, 0, born=version(2), attempt="b")])
    feed(target, [prompt(2, size=2)])
    target.evict(1)
    assert target.take_outcomes() == []
    target.evict(2)
    (draft,) = target.take_outcomes()
    assert fates([draft]) == {0: "dropped(stale)"}
    assert results([draft]) == {"dropped(stale)": 1, "dropped(never_arrived)": 1}
    assert target.num_open == 2


def test_what_is_evicted_while_its_reward_is_out_is_stale_and_not_the_rewards_fault() -> None:
    target = assembler(eta=1)
    feed(target, [prompt(0, size=2), sample(0, 0, born=version(0)), sample(0, 1, born=version(1))])
    target.evict(3)
    assert results(target.take_outcomes()) == {"dropped(stale)": 2}


def test_evict_leaves_a_margin() -> None:
    target = assembler(eta=1, evict_margin=1)
    feed(target, [prompt(0, size=2), *scored(0, 0, born=version(0))])
    target.evict(2)
    assert target.num_open == 1
    target.evict(3)
    assert target.num_open == 0


def test_abandoned_and_future_versions_are_dropped_member_by_member() -> None:
    tree = lineages((1, 0, 0), (2, 1, 3))
    target = assembler(eta=9, tree=tree, min_group_members=2, step=3)
    births = [version(3), version(4), version(3, lineage=2), version(4, lineage=2), version(0, lineage=7)]
    feed(target, pair(0, *births))
    batch = target.cut(3, 1)
    assert batch is not None
    assert [m.sample.member for m in batch.groups[0].members] == [0, 2]
    target.mark_trained(batch)
    (draft,) = target.take_outcomes()
    assert [m.reason for m in draft.members] == [
        None,
        "abandoned_branch",
        None,
        "future_version",
        "future_version",
    ]
    assert [m.age for m in draft.members] == [0, None, 0, None, None]


def test_a_group_with_too_few_surviving_members_is_dropped_at_the_cut() -> None:
    target = assembler(eta=9, tree=lineages((1, 0, 0), (2, 1, 3)))
    feed(target, pair(0, version(3), version(4)))
    assert target.cut(3, 1) is None
    (draft,) = target.take_outcomes()
    assert fates([draft]) == {0: "dropped(incomplete: 1/2)"}
    assert [m.reason for m in draft.members] == ["group_dropped", "abandoned_branch"]


def test_abandoned_members_do_not_make_a_part_group_old() -> None:
    tree = lineages((1, 0, 0), (2, 0, 0))
    target = assembler(eta=1, tree=tree, min_group_members=1)
    feed(target, pair(0, version(0), version(5, lineage=2)))
    batch = target.cut(5, 1)
    assert batch is not None
    assert batch.max_age == 0


def test_every_run_of_a_sample_must_survive() -> None:
    tree = lineages((1, 0, 0), (2, 1, 3))

    def problem(*versions: Version, step: int = 5) -> str | None:
        runs = tuple(VersionRun(num_tokens=1, version=each) for each in versions)
        return version_problem(runs, lineages=tree, step=step)

    assert problem(version(2), version(3), version(4, lineage=2)) is None
    assert problem(version(2), version(4), version(4, lineage=2)) == "abandoned_branch"
    assert problem(version(2), version(6, lineage=2)) == "future_version"
    assert problem(version(1, lineage=3)) == "future_version"
    assert age_of(version(2), lineages=tree, step=5) == 3
    assert age_of(version(4), lineages=tree, step=5) is None
    assert age_of(version(6, lineage=2), lineages=tree, step=5) is None
    assert age_of(None, lineages=tree, step=5) is None


def test_a_smaller_batch_only_when_allowed() -> None:
    target = assembler()
    feed(target, whole(0))
    assert target.cut(0, 2) is None
    batch = target.cut(0, 2, allow_smaller=True)
    assert batch is not None
    assert batch.num_samples == 8
    assert target.cut(0, 2, allow_smaller=True) is None
