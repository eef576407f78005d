"""Admission by an engine's pressure: as a table, and against an engine that saturates and thrashes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engines.pressure import EnginePressure
from producers.rollout.pressure import PressureControl
from producers.rollout.settings import PressureSettings
from tests.unit.producers.simulated_engine import SimulatedEngine

GROUP, MOST = 8, 256
SETTINGS = PressureSettings(start_sequences=32, probe_s=20.0)


def control(**settings: float) -> PressureControl:
    return PressureControl(SETTINGS.model_copy(update=settings), group_size=GROUP, most=MOST)


def at(
    now_s: float, *, kv: float | None = 0.2, queued: int = 0, preemptions: int = 0, tokens: int | None = None
) -> EnginePressure:
    return EnginePressure(measured_s=now_s, kv_use_share=kv, queued=queued, preemptions=preemptions, tokens=tokens)


def climb(steered: PressureControl, *, per_s: float, begin_s: float, num_looks: int = 5) -> float:
    """A full engine that makes so many tokens per second for a while."""
    for look in range(num_looks):
        now_s = begin_s + look
        steered.look(at(now_s, tokens=int(per_s * now_s)), held=steered.limit, now_s=now_s)
    return begin_s + num_looks


def test_it_grows_one_step_while_the_engine_is_full_and_makes_more_with_it() -> None:
    steered = control()
    climb(steered, per_s=100, begin_s=0.0, num_looks=4)
    assert steered.limit == 40


def test_a_step_that_brings_nothing_is_taken_back_and_not_tried_again_for_a_while() -> None:
    steered = control()
    end_s = climb(steered, per_s=100, begin_s=0.0, num_looks=4)
    end_s = climb(steered, per_s=100, begin_s=end_s, num_looks=4)
    assert steered.limit == 32
    climb(steered, per_s=100, begin_s=end_s, num_looks=12)
    assert steered.limit == 32


@pytest.mark.parametrize(
    "second",
    [at(1.0, kv=0.95), at(1.0, queued=2), at(1.0, preemptions=1)],
    ids=["kv above the watermark", "requests stand in the queue", "one was preempted"],
)
def test_it_is_trimmed_once_until_that_has_shown(second: EnginePressure) -> None:
    steered = control()
    steered.look(at(0.0, queued=2), held=32, now_s=0.0)
    assert steered.look(second, held=32, now_s=1.0) == 24, "0.9 of 32, in whole groups"
    assert steered.look(at(2.0, kv=0.95), held=30, now_s=2.0) == 24, "30 are held still"
    assert steered.look(at(3.0, kv=0.95), held=24, now_s=3.0) == 24, "what is left had no time to end"
    assert steered.look(at(5.0, kv=0.95), held=24, now_s=5.0) == 16


def test_a_queue_that_is_seen_once_is_none() -> None:
    steered = control()
    steered.look(at(0.0), held=32, now_s=0.0)
    steered.look(at(1.0, queued=5), held=32, now_s=1.0)
    assert steered.look(at(2.0), held=32, now_s=2.0) == 32


@pytest.mark.parametrize("stale", [None, at(0.0, kv=1.0, queued=9, preemptions=99)], ids=["none", "old"])
def test_without_a_fresh_look_nothing_changes(stale: EnginePressure | None) -> None:
    """Case 47: unknown is neither zero nor the maximum."""
    steered = control()
    for second in range(10, 200):
        assert steered.look(stale, held=32, now_s=float(second)) == 32


def test_an_engine_that_is_not_full_changes_nothing() -> None:
    steered = control()
    for second in range(60):
        steered.look(at(float(second), tokens=100 * second), held=24, now_s=float(second))
    assert steered.limit == 32


def test_it_grows_by_the_cache_alone_where_tokens_are_not_known() -> None:
    steered = control()
    for second in range(400):
        kv = 0.8 * steered.limit / 128
        steered.look(at(float(second), kv=kv), held=steered.limit, now_s=float(second))
    assert steered.limit == 136, "0.85 of the cache, and the next step would be at 0.9"


looks = st.lists(
    st.tuples(
        st.floats(0, 30),  # time since the last one
        st.one_of(st.none(), st.floats(0, 2)),  # KV use
        st.one_of(st.none(), st.integers(0, 20)),  # queue
        st.one_of(st.none(), st.integers(0, 5)),  # preemptions
        st.one_of(st.none(), st.integers(0, 10**6)),  # tokens
        st.floats(0, 20),  # age of the look
        st.integers(0, 400),  # held
    ),
    max_size=60,
)


@settings(deadline=None)
@given(looks, st.integers(1, 64), st.integers(1, 300))
def test_whatever_is_seen_the_limit_stays_within_a_group_and_the_most(
    course: list[tuple[float, float | None, int | None, int | None, int | None, float, int]], group: int, most: int
) -> None:
    steered, now_s = PressureControl(SETTINGS, group_size=group, most=most), 0.0
    for wait_s, kv, queued, preemptions, tokens, age_s, held in course:
        now_s += wait_s
        before = steered.limit
        seen = EnginePressure(
            measured_s=now_s - age_s, kv_use_share=kv, queued=queued, preemptions=preemptions, tokens=tokens
        )
        after = steered.look(seen, held=held, now_s=now_s)
        assert min(group, most) <= after <= most
        assert age_s <= SETTINGS.max_age_s or after == before, "an old look changes nothing"


def throughput(engine: SimulatedEngine, steered: PressureControl | int, *, warm_s: float, over_s: float) -> float:
    """Tokens per second over the last part, with a limit that is steered or stays."""
    began = 0.0
    while engine.now_s < warm_s + over_s:
        if engine.now_s < warm_s:
            began = engine.tokens
        if isinstance(steered, PressureControl):
            engine.turn(steered.look(engine.pressure, held=engine.held, now_s=engine.now_s))
        else:
            engine.turn(steered)
    return (engine.tokens - began) / over_s


@pytest.mark.parametrize("half", [8.0, 24.0, 60.0], ids=lambda half: f"half of the peak at {half:g}")
@pytest.mark.parametrize("kv_tokens", [2_000.0, 6_000.0, 12_000.0, 20_000.0, 1e6], ids=lambda kv: f"cache {kv:g}")
def test_it_ends_near_the_best_limit_and_thrashes_little(kv_tokens: float, half: float) -> None:
    def engine() -> SimulatedEngine:
        return SimulatedEngine(kv_tokens=kv_tokens, half=half)

    best = max(throughput(engine(), limit, warm_s=20, over_s=30) for limit in (8, 16, 32, 48, 64, 96, 128, 192, 256))
    steered, unsteered = engine(), engine()
    reached = throughput(steered, control(probe_s=10.0), warm_s=120, over_s=80)
    without = throughput(unsteered, MOST, warm_s=120, over_s=80)
    assert reached >= 0.85 * best
    assert reached >= 0.9 * without, "it costs little where all sequences fit"
    assert steered.preemptions <= 0.1 * unsteered.preemptions, "most come before it has found the limit"
