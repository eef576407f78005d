"""A pool of slots: decisions as tables, and what holds under any sequence of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler import reactive, stage_aware
from consumers.scheduler.policy import Policy
from consumers.scheduler.pool import SAMPLES_MADE, Lending, Pool, Split, StepModel, lend, pool_of
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Scalable, Scaled, Snapshot, Standing
from consumers.scheduler.stage_clock import FORWARD_BACKWARD, PhaseTime
from schemas.records import Version

SETTINGS = SchedulerSettings()
NOW_S, SLOTS = 1000.0, 12
GROUP = "rlweave.r.rollout"


def scalable(target: str, *, initial: int, group: str = "") -> Scalable:
    return Scalable(target=target, group=group, least=1, most=SLOTS - 1, initial=initial)


def instances(stage: str, number: int, *, began_s: float, **gauges: float) -> list[InstanceSeen]:
    return [
        InstanceSeen(
            stage=stage,
            instance=f"{stage}-{index}",
            phase="generating",
            phase_since_s=began_s,
            heard_s=NOW_S,
            seq=1,
            began_s=began_s,
            gauges=gauges,
        )
        for index in range(number)
    ]


def span(typical_s: float) -> PhaseTime:
    return PhaseTime(typical_s=typical_s, high_s=typical_s, num_spans=9)


def run(
    rollouts: int = 6,
    *,
    groups_s: float = 1 / 3,
    late: float = 1.0,
    parallel_s: float = 98.0,
    rest_s: float = 3.0,
    use: float | None = 1.0,
    waits: float = 0.0,
    unstarted: int | None = 100,
    left: int = 100,
    start_s: float = 20.0,
    young_s: float = 500.0,
    ago_s: float = 500.0,
) -> Snapshot:
    """64 groups of 8 per step; each rollout makes `groups_s` groups per second, a step is `parallel_s` rank-seconds and
    `rest_s` more."""
    ranks = SLOTS - rollouts
    began_s = NOW_S - young_s
    made = groups_s * rollouts * 8 * (0.0 if use is None else use)
    return Snapshot(
        now_s=NOW_S,
        observed_s=900.0,
        instances=(
            *instances("learner", ranks, began_s=began_s),
            *instances("rollout", rollouts, began_s=began_s, free_slots=0.0, prompts_in_flight=4.0),
        ),
        horizon=Version(lineage=1, step=10),
        lag={(GROUP, "prompts"): None if unstarted is None else unstarted + 4 * rollouts},
        rates={SAMPLES_MADE: made},
        late_rates={SAMPLES_MADE: made * late},
        shares={reactive.LEARNER_WAITS: waits},
        times={
            FORWARD_BACKWARD: span(parallel_s / ranks),
            ("learner", "staging_weights"): span(rest_s),
            ("rollout", "starting"): span(start_s),
        },
        slot_use=use,
        fleet=(scalable("rollout", initial=6, group=GROUP), scalable("learner", initial=6)),
        slots=SLOTS,
        groups_per_step=64,
        group_size=8,
        max_steps=10 + left,
        standing=standing(rollouts, ago_s=ago_s),
    )


def standing(rollouts: int, *, ago_s: float) -> Standing:
    at_s = NOW_S - ago_s
    scale = {
        "rollout": Scaled(replicas=rollouts, at_s=at_s),
        "learner": Scaled(replicas=SLOTS - rollouts, at_s=at_s),
    }
    return Standing(heartbeat_s=NOW_S, scale=scale)


def commanded(decide: Policy, snapshot: Snapshot) -> list[tuple[str, int | None]]:
    return [(draft.target, draft.replicas) for draft in decide(snapshot, SETTINGS) if draft.kind == "scale"]


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (run(6), [("learner", 5), ("rollout", 7)]),  # 32 s are made in, 19.3 s trained in; with 7 and 5 27.4 s
        (run(7), []),  # the best split
        (run(8), []),  # a step of 27.5 s: as good
        (run(9), [("rollout", 8), ("learner", 4)]),  # 27.5 s, and 7 and 5 take 27.4 s: the nearer one
        (run(11), [("rollout", 8), ("learner", 4)]),
        (run(11, groups_s=1.0), [("rollout", 5), ("learner", 7)]),  # 3 and 9 are best: half of the lender at a time
        (run(7, groups_s=1 / 9), [("learner", 2), ("rollout", 10)]),  # decoding is slower now
        (run(7, groups_s=1 / 9, late=0.5), []),  # and is slowing down still: wait where it comes to
        (run(7, groups_s=1 / 9, unstarted=0), []),  # no prompts for more rollouts
        (run(7, groups_s=1 / 9, unstarted=None), []),
        (run(9, unstarted=None), [("rollout", 8), ("learner", 4)]),  # fewer rollouts need no prompts
        (run(6, use=None), []),
        (run(6, use=0.01), []),
        (run(6, left=9), [("learner", 5), ("rollout", 7)]),  # nine steps gain 41 s, a start takes 20 s
        (run(6, left=8), []),
        (run(6, start_s=300.0), []),
        (run(6, young_s=59.0), []),  # its processes have only just come
        (run(6, ago_s=59.0), []),
    ],
)
def test_stage_aware(snapshot: Snapshot, expected: list[tuple[str, int]]) -> None:
    assert commanded(stage_aware.decide, snapshot) == expected


@pytest.mark.parametrize(("num_steps", "expected"), [(1, []), (2, []), (3, [("learner", 5), ("rollout", 7)])])
def test_nothing_moves_on_the_word_of_one_step(num_steps: int, expected: list[tuple[str, int | None]]) -> None:
    young = run(6)
    few = replace(young.times[FORWARD_BACKWARD], num_spans=num_steps)
    assert commanded(stage_aware.decide, replace(young, times={**young.times, FORWARD_BACKWARD: few})) == expected


def test_a_change_that_takes_back_the_last_one_must_gain_more() -> None:
    a_fifth = run(8, parallel_s=118.0)  # a step takes 32.5 s, with 7 rollouts 27.4 s
    assert commanded(stage_aware.decide, a_fifth) == [], "6 to 8 was the last change"
    scale = {target: replace(one, before=one.replicas + 1) for target, one in a_fifth.standing.scale.items()}
    from_above = replace(a_fifth, standing=replace(a_fifth.standing, scale=scale))
    assert commanded(stage_aware.decide, from_above) == [("rollout", 7), ("learner", 5)]
    a_half = run(8, parallel_s=200.0)  # 53 s and 36.3 s
    assert commanded(stage_aware.decide, a_half) == [("rollout", 6), ("learner", 6)]


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (run(6, waits=0.4), [("learner", 5), ("rollout", 7)]),
        (run(6, waits=0.1), []),
        (run(6, waits=0.4, use=0.5), []),
        (run(6, waits=0.4, unstarted=None), []),
        (run(8, waits=0.0, use=0.3), [("rollout", 7), ("learner", 5)]),
        (run(11, waits=0.9), []),  # the learner keeps its last rank
        (run(1, waits=0.0, use=0.1), []),
    ],
)
def test_reactive(snapshot: Snapshot, expected: list[tuple[str, int]]) -> None:
    assert commanded(reactive.decide, snapshot) == expected


def test_without_a_pool_ranks_follow_what_is_made() -> None:
    alone = replace(run(8), slots=None, fleet=(scalable("learner", initial=4),))
    assert commanded(stage_aware.decide, alone) == [("learner", 5)]  # 24 s are made in, of which 3 s are not divided


def test_a_change_that_is_not_carried_out_is_waited_for() -> None:
    snapshot = run(6)
    fewer = tuple(one for one in snapshot.instances if one.instance != "learner-5")
    assert commanded(stage_aware.decide, replace(snapshot, instances=fewer)) == []


def test_the_model_is_who_of_the_two_is_slower() -> None:
    model = StepModel(groups_per_step=64, groups_s=1 / 3, parallel_s=98.0, rest_s=3.0)
    assert model.step_s(Split(rollouts=6, ranks=6)) == pytest.approx(32.0)
    assert model.step_s(Split(rollouts=8, ranks=4)) == pytest.approx(27.5)
    assert model.step_s(Split(rollouts=0, ranks=12)) == float("inf")


@given(
    rollouts=st.integers(1, SLOTS - 1),
    wished=st.integers(-5, SLOTS + 5),
    least=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    most=st.tuples(st.integers(4, SLOTS), st.integers(4, SLOTS)),
)
def test_whatever_is_wished_for_the_pool_and_the_limits_hold(
    rollouts: int, wished: int, least: tuple[int, int], most: tuple[int, int]
) -> None:
    snapshot = run(rollouts)
    sides = (
        replace(scalable("rollout", initial=6, group=GROUP), least=least[0], most=most[0]),
        replace(scalable("learner", initial=6), least=least[1], most=most[1]),
    )
    snapshot = replace(snapshot, fleet=sides)
    wish = Lending(split=Split(rollouts=wished, ranks=SLOTS - wished), reason="a test")
    drafts = lend(snapshot, SETTINGS, wishes=lambda *_, **__: wish)
    told = {draft.target: draft.replicas for draft in drafts if draft.replicas is not None}
    after = (told.get("rollout", rollouts), told.get("learner", SLOTS - rollouts))
    assert sum(after) <= SLOTS
    for number, low, high in zip(after, least, most, strict=True):
        assert not told or low <= number <= high
    assert abs(after[0] - rollouts) <= max(-(-rollouts // 2), -(-(SLOTS - rollouts) // 2), least[0], SLOTS - most[0])


@given(
    groups_s=st.floats(1e-6, 1e3),
    parallel_s=st.floats(0.0, 1e4),
    rest_s=st.floats(0.0, 1e3),
    rollouts=st.integers(1, SLOTS - 1),
)
def test_the_best_split_is_never_slower_than_the_present_one(
    groups_s: float, parallel_s: float, rest_s: float, rollouts: int
) -> None:
    model = StepModel(groups_per_step=64, groups_s=groups_s, parallel_s=parallel_s, rest_s=rest_s)
    pool = pool_of(run(rollouts))
    assert isinstance(pool, Pool)
    best = pool.best(model, slack=0.05)
    assert best.rollouts + best.ranks == SLOTS
    assert model.step_s(best) <= model.step_s(pool.now)
