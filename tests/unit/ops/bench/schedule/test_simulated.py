"""The simulator of `bench schedule`: its arithmetic, its rules, and that policies do in it what they are for."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench.result import Noise
from ops.bench.schedule.bench import OURS, Candidate, Found, ScheduleSize, chosen, schedule_result, simulate
from ops.bench.schedule.figures import Figures
from ops.bench.schedule.link import CHECKPOINTS, WEIGHTS, Link
from ops.bench.schedule.plant import Plant, Rules
from ops.bench.schedule.pool import Order, PoolState
from ops.bench.schedule.workload import Workload, load_workload
from schemas.errors import SettingsError

STATIONARY, DRIFTING = load_workload("stationary"), load_workload("drifting")
SIZE = ScheduleSize(steps=20, lockstep_steps=6)


def static(rollouts: int, workload: Workload = STATIONARY) -> Figures:
    return simulate(Candidate(policy="static", rollouts=rollouts, ranks=12 - rollouts), workload, size=SIZE)


def test_the_workloads_are_what_they_are() -> None:
    assert STATIONARY.slots * STATIONARY.sequences_per_slot == 384
    assert replace(DRIFTING, name="stationary", late_tokens_s=40.0) == STATIONARY
    lengths = [tokens for group in range(500) for tokens in STATIONARY.lengths(group)]
    assert sorted(lengths)[len(lengths) // 2] == pytest.approx(400, rel=0.05)
    assert max(lengths) <= 4096
    with pytest.raises(SettingsError, match="no workload"):
        load_workload("nothing")
    assert (files("ops.bench.workloads") / "drifting.toml").is_file()


@pytest.mark.parametrize("rollouts", [5, 9])
def test_a_step_takes_as_long_as_the_slower_side_does(rollouts: int) -> None:
    mean = sum(tokens for group in range(1600) for tokens in STATIONARY.lengths(group)) / 12_800
    making_s = 512 * mean / (rollouts * 32 * 40)
    training_s = 0.0004 * 512 * mean / (12 - rollouts) + 3
    assert static(rollouts).step_s == pytest.approx(max(making_s, training_s), rel=0.05)


def test_the_age_bound_holds_with_both_sides_slow() -> None:
    for rollouts in (3, 7, 10):
        assert static(rollouts, DRIFTING).max_age <= DRIFTING.max_staleness
    lockstep = simulate(Candidate(policy="lockstep", rollouts=6, ranks=6), STATIONARY, size=SIZE)
    assert lockstep.max_age == 0


def test_stage_aware_finds_the_best_split_and_follows_what_changes() -> None:
    ours = Candidate(policy=OURS, rollouts=6, ranks=6)
    assert simulate(ours, STATIONARY, size=SIZE).samples_s > 0.95 * static(7).samples_s
    long = replace(SIZE, steps=40)
    best = max(
        simulate(Candidate(policy="static", rollouts=rollouts, ranks=12 - rollouts), DRIFTING, size=long).samples_s
        for rollouts in (7, 8, 9, 10)
    )
    assert simulate(ours, DRIFTING, size=long).samples_s > 1.05 * best


def test_a_publish_goes_before_a_checkpoint_when_classes_hold() -> None:
    candidate = Candidate(policy="static", rollouts=7, ranks=5)
    managed, as_it_comes = (simulate(candidate, STATIONARY, size=SIZE, managed=managed) for managed in (True, False))
    assert managed.publish_slowdown == pytest.approx(1.0)
    assert as_it_comes.publish_slowdown > 1.5


def test_the_same_input_gives_the_same_run() -> None:
    ours = Candidate(policy=OURS, rollouts=6, ranks=6)
    assert simulate(ours, DRIFTING, size=SIZE) == simulate(ours, DRIFTING, size=SIZE)


def test_a_run_in_which_nothing_can_happen_ends_with_an_error() -> None:
    rules = Rules(rollouts=0, ranks=12, slots=None, max_staleness=4, publish_lag=1)
    plant = Plant(STATIONARY, rules, num_steps=2, tick_s=math.inf)
    with pytest.raises(RuntimeError, match="nothing can happen"):
        plant.run("nobody")


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from([WEIGHTS, CHECKPOINTS]), st.floats(1.0, 1e4), st.floats(0, 20)), max_size=8
    ),
    managed=st.booleans(),
)
def test_the_link_carries_all_and_never_more_than_its_rate(
    sizes: list[tuple[str, float, float]], *, managed: bool
) -> None:
    link, took = Link(bytes_s=100.0, managed=managed), list[float]()
    now_s = 0.0
    for kind, num_bytes, pause_s in sizes:
        now_s += pause_s
        link.send(kind, num_bytes, now_s=now_s, done=took.append)
    while math.isfinite(next_s := link.next_s()):
        now_s = max(now_s, next_s)
        link.advance(now_s)
    assert len(took) == len(sizes)
    total = sum(num_bytes for _, num_bytes, _ in sizes)
    assert now_s >= total / 100.0 - 0.1
    least = sorted(num_bytes / 100.0 for _, num_bytes, _ in sizes)
    assert all(each >= alone - 0.1 for each, alone in zip(sorted(took), least, strict=True))


def test_weights_do_not_wait_for_a_checkpoint() -> None:
    took: dict[str, float] = {}
    link = Link(bytes_s=10.0, managed=True)
    link.send(CHECKPOINTS, 100.0, now_s=0.0, done=lambda s: took.__setitem__(CHECKPOINTS, s))
    link.send(WEIGHTS, 50.0, now_s=2.0, done=lambda s: took.__setitem__(WEIGHTS, s))
    link.advance(100.0)
    assert took == {WEIGHTS: pytest.approx(5.0, abs=0.2), CHECKPOINTS: pytest.approx(15.0, abs=0.2)}


@given(st.lists(st.tuples(st.integers(1, 11), st.sampled_from(["step", "left", "rank", "engine"])), max_size=60))
def test_slots_of_a_pool_are_neither_lost_nor_made(moves: list[tuple[int, str]]) -> None:
    pool = PoolState(rollouts=6, ranks=6, slots=12)
    retiring = to_learner = to_rollout = 0
    for rollouts, what in moves:
        pool.order(Order(target="rollout", replicas=rollouts))
        pool.order(Order(target="learner", replicas=12 - rollouts))
        retiring += pool.num_to_retire(pool.rollouts - retiring)
        if what == "step":
            to_rollout += pool.change_ranks()
        elif what == "left" and retiring:
            pool.left()
            retiring, to_learner = retiring - 1, to_learner + 1
        elif what == "rank" and to_learner:
            pool.rank_came()
            to_learner -= 1
        elif what == "engine" and to_rollout:
            pool.engine_came()
            to_rollout -= 1
        assert pool.rollouts + pool.ranks + pool.num_under_way == 12
        assert min(pool.rollouts, pool.ranks) >= 0


def test_without_a_pool_nothing_can_be_ordered() -> None:
    with pytest.raises(ValueError, match="no pool"):
        PoolState(rollouts=1, ranks=1, slots=None).order(Order(target="rollout", replicas=2))


def test_the_result_has_the_keys_that_are_read_and_says_what_is_simulated() -> None:
    size = ScheduleSize(steps=8, lockstep_steps=6)
    names = [
        Candidate(policy=policy, rollouts=rollouts, ranks=ranks)
        for policy, rollouts, ranks in (
            ("static", 7, 5),
            ("static", 9, 3),
            ("lockstep", 6, 6),
            ("lockstep, all slots", 12, 12),
            ("reactive", 6, 6),
            (OURS, 6, 6),
        )
    ]
    found = {
        workload.name: Found(simulated={one.name: simulate(one, workload, size=size) for one in names})
        for workload in (STATIONARY, DRIFTING)
    }
    assert [one.name for one in chosen(found["stationary"], STATIONARY, size=size)][:2] == [
        "lockstep 6/6",
        "static 7/5",
    ]
    result = schedule_result(found, size=size, noise=Noise())
    wanted = {
        "stationary_over_lockstep",
        "stationary_over_static",
        "drifting_over_static",
        "data_wait_share",
        "rollout_idle_share",
        "stale_drop_share",
        "publish_slowdown",
    }
    assert wanted <= result.values.keys()
    assert any("From the simulator only: stationary, drifting" in note for note in result.notes)
