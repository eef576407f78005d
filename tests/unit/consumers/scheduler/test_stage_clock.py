"""Running estimates of phase times and flows, and what is told of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler.pace import Pace, plain_name
from consumers.scheduler.snapshot import InstanceSeen, Snapshot
from consumers.scheduler.stage_clock import (
    AWAY,
    FORWARD_BACKWARD,
    MOST_CHARS,
    MOST_NAMES,
    NUM_SPANS,
    STEP,
    PhaseTime,
    PhaseTimes,
    Rates,
)
from pipeline.metrics import Metrics
from schemas.records import StageEvent, Version

SAMPLES_READ = "records_read{topic=samples}"


def ended(phase: str, spent_s: float, *, instance: str = "learner-1") -> StageEvent:
    return event("phase_ended", phase, {"spent_s": spent_s}, instance=instance)


def began(phase: str, *, instance: str = "learner-1") -> StageEvent:
    return event("phase_began", phase, {}, instance=instance)


def step(number: int, *, at_s: float, instance: str = "learner-1") -> StageEvent:
    return event("notice", "step", {"step": float(number)}, at_s=at_s, instance=instance)


def event(
    kind: str, name: str, gauges: dict[str, float], *, at_s: float = 0.0, instance: str = "learner-1"
) -> StageEvent:
    return StageEvent(
        run="r",
        stage="learner",
        instance=instance,
        kind=kind,
        name=name,
        seq=0,
        gauges=gauges,
        monotonic_s=at_s,
        unix_ms=0,
    )


def times_of(*events: StageEvent) -> dict[tuple[str, str], PhaseTime]:
    times = PhaseTimes()
    for one in events:
        times.add(one, now_s=one.monotonic_s)
    return times.times()


def test_one_stall_moves_no_estimate() -> None:
    found = times_of(*(ended("publishing", 1.0) for _ in range(20)), ended("publishing", 500.0))
    assert found["learner", "publishing"] == PhaseTime(typical_s=1.0, high_s=1.0, num_spans=21)


def test_the_last_spans_count() -> None:
    spans = [*(ended("publishing", 1.0) for _ in range(500)), *(ended("publishing", 4.0) for _ in range(NUM_SPANS))]
    assert times_of(*spans)["learner", "publishing"].typical_s == 4.0


@pytest.mark.parametrize("span_s", [math.nan, math.inf, -1.0])
def test_a_span_that_is_none_is_left_out(span_s: float) -> None:
    assert times_of(ended("publishing", span_s)) == {}


def test_the_time_of_a_step_is_from_one_to_the_next() -> None:
    found = times_of(step(4, at_s=10.0), step(5, at_s=12.0), step(6, at_s=15.0), step(7, at_s=17.0))
    assert found[STEP] == PhaseTime(typical_s=2.0, high_s=pytest.approx(2.8), num_spans=3)  # type: ignore[arg-type]


def step_in_parts(*parts_s: float, instance: str = "learner-1") -> list[StageEvent]:
    """A step in whose middle the one before was written, once or more."""
    heard = [began("forward_backward", instance=instance)]
    for number, part_s in enumerate(parts_s):
        if number:
            heard += [began("publishing", instance=instance), ended("publishing", 0.5, instance=instance)]
            heard += [began("forward_backward", instance=instance)]
        heard.append(ended("forward_backward", part_s, instance=instance))
    return [*heard, began("waiting_for_data", instance=instance), ended("waiting_for_data", 0.1, instance=instance)]


def test_the_parts_of_a_steps_work_are_one_span() -> None:
    heard = [*step_in_parts(2.0, 1.0), *step_in_parts(3.0), *step_in_parts(0.5, 2.0, 0.5)]
    assert times_of(*heard)[FORWARD_BACKWARD] == PhaseTime(typical_s=3.0, high_s=3.0, num_spans=3)


def test_of_a_step_that_goes_on_nothing_is_known_yet() -> None:
    assert FORWARD_BACKWARD not in times_of(began("forward_backward"), ended("forward_backward", 2.0))


def test_the_work_of_each_rank_is_its_own() -> None:
    joined = [began("reading"), began("reading", instance="learner-2")]  # both are known before they work
    pairs = zip_longest(step_in_parts(2.0, 1.0), step_in_parts(3.0, instance="learner-2"))
    heard = joined + [one for pair in pairs for one in pair if one is not None]
    assert times_of(*heard)[FORWARD_BACKWARD] == PhaseTime(typical_s=3.0, high_s=3.0, num_spans=2)


def test_a_process_that_is_gone_leaves_no_part_of_a_step() -> None:
    times = PhaseTimes()
    times.add(ended("forward_backward", 2.0), now_s=0.0)
    times.forget("learner-1")
    for one in step_in_parts(3.0):
        times.add(one, now_s=0.0)
    assert times.times()[FORWARD_BACKWARD].typical_s == 3.0


def test_new_processes_of_the_learner_begin_anew_and_their_absence_is_known() -> None:
    found = times_of(
        ended("starting", 3.0),
        ended("forward_backward", 8.0),
        began("reading"),
        event("notice", "stopped", {}, at_s=100.0),
        event("phase_began", "starting", {}, at_s=106.0, instance="learner-2"),
        event("phase_began", "reading", {}, at_s=109.5, instance="learner-2"),
        event("phase_began", "reading", {}, at_s=120.0, instance="learner-2"),
    )
    assert ("learner", "forward_backward") not in found
    assert found[AWAY] == PhaseTime(typical_s=9.5, high_s=9.5, num_spans=1)
    assert found["learner", "starting"].typical_s == 3.0


def test_neither_a_gap_nor_another_learner_makes_a_step() -> None:
    assert times_of(step(4, at_s=10.0), step(6, at_s=11.0), step(7, at_s=900.0, instance="learner-2")) == {}


def rates_of(*beats: tuple[float, str, float]) -> Rates:
    rates = Rates(window_s=10.0, began_s=0.0)
    for now_s, instance, count in beats:
        rates.add(instance, "g", gauges={SAMPLES_READ: count, "free_slots": 3.0}, now_s=now_s)
    return rates


def test_a_rate_is_over_all_processes_of_its_owner() -> None:
    rates = rates_of((10.0, "a", 5000.0), (10.0, "b", 0.0), (15.0, "a", 5050.0), (15.0, "b", 30.0))
    assert rates.per_s(20.0) == {("g", SAMPLES_READ): 8.0}


def test_what_stood_still_for_the_window_is_0_and_what_was_heard_once_is_not_known() -> None:
    assert rates_of((1.0, "a", 5.0)).per_s(2.0) == {}
    assert rates_of((1.0, "a", 5.0), (2.0, "a", 9.0)).per_s(50.0) == {("g", SAMPLES_READ): 0.0}


def test_a_rate_in_the_first_seconds_is_over_the_time_there_was() -> None:
    assert rates_of((1.0, "a", 0.0), (2.0, "a", 8.0)).per_s(2.0) == {("g", SAMPLES_READ): 4.0}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1e9)), max_size=30))
def test_no_order_of_counts_makes_a_rate_below_0(beats: list[tuple[str, float]]) -> None:
    rates = rates_of(*((float(number), instance, count) for number, (instance, count) in enumerate(beats)))
    assert all(rate >= 0 for rate in rates.per_s(30.0).values())


def snapshot(*, lag: int | None = 40, rate: float | None = 8.0, now_s: float = 0.0) -> Snapshot:
    engine = InstanceSeen(
        stage="rollout",
        instance="rollout-1",
        phase="generating",
        phase_since_s=0,
        heard_s=0,
        seq=0,
        gauges={"free_slots": 12.0},
        version=Version(lineage=1, step=3),
    )
    return Snapshot(
        now_s=now_s,
        observed_s=1,
        instances=(engine,),
        staged=(Version(lineage=1, step=5),),
        lag={("g", "samples"): lag},
        rates={} if rate is None else {("g", SAMPLES_READ): rate},
        shares={("learner", "waiting_for_data"): 0.25},
        times={("learner", "publishing"): PhaseTime(typical_s=0.5, high_s=0.6, num_spans=9)},
    )


@pytest.mark.parametrize(
    ("lag", "rate", "seconds"),
    [(40, 8.0, 5.0), (40, 0.0, math.inf), (0, 0.0, 0.0), (0, None, 0.0), (40, None, None), (None, 8.0, None)],
)
def test_lag_in_seconds(lag: int | None, rate: float | None, seconds: float | None) -> None:
    assert snapshot(lag=lag, rate=rate).lag_s(("g", "samples")) == seconds


def test_free_slots_and_versions_behind() -> None:
    assert snapshot().free_slots() == 12
    assert snapshot().versions_behind() == {"rollout-1": 2}
    assert Snapshot(now_s=0, observed_s=0).free_slots() is None


def test_gauges_follow_the_snapshot_and_go_with_what_they_were_about() -> None:
    metrics = Metrics(run="r", stage="scheduler", instance="s-1")
    pace = Pace(metrics, every_s=1.0)
    pace.tell(snapshot())
    assert metrics.snapshot() == {
        "phase_typical_s{of=learner,phase=publishing}": 0.5,
        "phase_share{of=learner,phase=waiting_for_data}": 0.25,
        "flow_per_s{of=g,counter=records_read samples}": 8.0,
        "lag_s{group=g,topic=samples}": 5.0,
        "lag_versions{group=g,topic=samples}": 40.0,
        "versions_behind_max": 2.0,
    }
    pace.tell(snapshot(lag=None, now_s=0.5))
    assert "lag_s{group=g,topic=samples}" in metrics.snapshot()
    pace.tell(snapshot(lag=None, now_s=1.0))
    assert "lag_s{group=g,topic=samples}" not in metrics.snapshot()


def test_counters_have_plain_names() -> None:
    assert plain_name("tokens_generated") == "tokens_generated"
    assert plain_name("groups_closed{result=trained}") == "groups_closed trained"


def test_names_that_anyone_may_write_take_no_more_than_a_heartbeat_can_hold() -> None:
    names = [f"phase_{number}" for number in range(2 * MOST_NAMES)]
    found = times_of(ended("x" * MOST_CHARS, 1.0), *(ended(name, 1.0) for name in names), ended(names[0], 1.0))
    assert len(found) == MOST_NAMES
    assert found["learner", names[0]].num_spans == 2
    rates = Rates(window_s=10.0, began_s=0.0)
    for now_s in (1.0, 2.0):
        rates.add("a", "g", gauges={f"records_read{{topic={name}}}": now_s for name in names}, now_s=now_s)
    assert len(rates.per_s(2.0)) == MOST_NAMES


def test_no_number_of_free_slots_ends_the_scheduler() -> None:
    engine = replace(snapshot().instances[0], gauges={"free_slots": 1e308})
    found = replace(snapshot(), instances=(engine, engine)).free_slots()
    assert found is not None
    assert found > 1e308
