"""Need-driven publishing: as a table, as a property, and over a run in miniature."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.scheduler.need import why_held
from consumers.scheduler.publish_cost import PublishCost, travel_bytes
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Publishing, Snapshot, Standing
from consumers.scheduler.stage_clock import STEP, PhaseTime
from consumers.scheduler.waves import next_publish
from schemas.records import ChunkRef, Manifest, StageEvent, TensorEntry, Version
from tests.unit.consumers.scheduler.test_waves import NOW_S, engine, v

ETA = 6


def seen(
    *engines: InstanceSeen,
    newest: int = 10,
    publish_s: float | None = 1.0,
    step_s: float | None = 10.0,
    since_s: float = 0.0,
    eta: int | None = ETA,
    max_steps: int = 100,
) -> Snapshot:
    times = {} if step_s is None else {STEP: PhaseTime(typical_s=step_s, high_s=step_s, num_spans=9)}
    return Snapshot(
        now_s=NOW_S,
        observed_s=100.0,
        instances=engines,
        staged=(v(newest),),
        horizon=v(newest),
        newest_since_s=NOW_S - since_s,
        publish_s=publish_s,
        times=times,
        max_steps=max_steps,
        max_staleness=eta,
    )


def why(snapshot: Snapshot, *, standing: int = 9, released: float = 0.0, within: int = 0) -> str:
    names = [one.instance for one in snapshot.instances]
    publish = Publishing(version=v(standing), released_s=dict.fromkeys(names, NOW_S - released))
    settings = SchedulerSettings(publish_within_versions=within)
    return why_held(snapshot, settings, standing=publish) or ""


AT_9, AT_8 = engine("a", 9), engine("b", 8)
SLOW_S = 8.0  # of a step of 10


@pytest.mark.parametrize(
    ("snapshot", "within", "held"),
    [
        (seen(AT_9), 0, ""),
        (seen(AT_9, since_s=9.9), 0, ""),
        (seen(AT_9), 1, "no engine is more than 1 behind"),
        (seen(AT_9, AT_8), 1, ""),
        (seen(AT_9, AT_8), 2, "no engine is more than 2 behind"),
        (seen(AT_9, eta=3), 1, ""),
        (seen(AT_9, publish_s=25.0, eta=6), 1, "no engine is more than 1 behind"),
        (seen(AT_9, publish_s=35.0, eta=6), 1, ""),
        (seen(AT_9, eta=None), 1, ""),
        (seen(AT_9, publish_s=None), 1, ""),
        (seen(AT_9, step_s=None), 1, ""),
        (seen(AT_9, engine("c", None)), 1, ""),
        (seen(AT_9, replace(AT_9, instance="d", version=v(9, lineage=2))), 1, ""),
        (seen(), 1, ""),
        (seen(AT_9, engine("c", 1, silent_s=11)), 1, "no engine is more than 1 behind"),
        (seen(AT_9, AT_8, publish_s=SLOW_S), 0, "b still fetches or loads 1.9"),
        (seen(AT_9, AT_8, publish_s=4.0), 0, ""),
        (seen(AT_9, since_s=8.5, publish_s=SLOW_S), 0, "the next one is due in 1.5 s"),
        (seen(AT_9, since_s=5.0, publish_s=SLOW_S), 0, ""),
        (seen(AT_9, since_s=10.5, publish_s=SLOW_S), 0, ""),
        (seen(AT_9, max_steps=10), 0, "no sample can be made with it any more"),
    ],
    ids=[
        "cheap: every version goes out",
        "cheap: also when the next one is due",
        "near enough",
        "one is not",
        "both are",
        "the bound would be come to",
        "slow, and the bound is far",
        "so slow that the bound is near",
        "no bound known",
        "no publish time known",
        "no step time known",
        "an engine serves nothing",
        "an engine of another lineage",
        "no engine",
        "a silent one does not count",
        "one is still fetching",
        "one is still fetching, and it is cheap",
        "the next one is due in a moment",
        "the next one takes a while",
        "the next one is overdue",
        "the last step is done",
    ],
)
def test_when_a_version_is_held(snapshot: Snapshot, within: int, held: str) -> None:
    found = why(snapshot, within=within)
    assert found.startswith(held) if held else not found


def test_an_engine_that_does_not_come_to_it_holds_nothing_up() -> None:
    slow = seen(AT_9, AT_8, publish_s=SLOW_S)
    assert why(slow, released=29.0)
    assert not why(slow, released=31.0)


def test_a_held_version_is_skipped_and_the_reason_says_so() -> None:
    settings = SchedulerSettings(publish_within_versions=1, settle_s=1.0)
    standing = Standing(publish=Publishing(version=v(9), waves=(("a",),)))
    assert next_publish(replace(seen(AT_9), standing=standing), settings) is None
    step = next_publish(replace(seen(AT_9, newest=11), standing=standing), settings)
    assert step is not None
    assert step.publish.version == v(11)
    assert step.reason.endswith("after 1.9, those in between are skipped")


times_s = st.one_of(st.none(), st.floats(0.01, 100))


@settings(deadline=None)
@given(
    engines=st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=4),
    newest=st.integers(20, 31),
    publish_s=times_s,
    step_s=times_s,
    since_s=st.floats(0, 200),
    eta=st.one_of(st.none(), st.integers(0, 9)),
    within=st.integers(0, 9),
    max_steps=st.integers(20, 40),
)
def test_no_hold_brings_an_engine_to_the_bound(
    engines: list[int | None],
    newest: int,
    publish_s: float | None,
    step_s: float | None,
    since_s: float,
    eta: int | None,
    within: int,
    max_steps: int,
) -> None:
    found = [engine(f"e{number}", step) for number, step in enumerate(engines)]
    picture = seen(
        *found, newest=newest, publish_s=publish_s, step_s=step_s, since_s=since_s, eta=eta, max_steps=max_steps
    )
    if not why(picture, within=within) or newest >= max_steps:
        return
    known = None not in (eta, publish_s, step_s)
    assert known, "unknown is no reason to hold"
    ahead = math.ceil((publish_s or 0.0) / (step_s or 1.0))
    for step in engines:
        assert step is not None, "an engine that serves nothing is never made to wait"
        assert newest - step + 1 + ahead < max(1, eta or 0)


def course(settings: SchedulerSettings, *, publish_s: float) -> tuple[int, int]:
    """A learner with steps of 10 s and one engine that fetches what is commanded, over 100 steps: the largest number of
    versions that it lacked, and how many were published."""
    served, standing = 0, Publishing(version=v(0), waves=(("a",),))
    fetching: tuple[float, int] | None = None
    worst = num_published = 0
    for tick in range(2, 1001):
        now_s, newest = float(tick), tick // 10
        if fetching is not None and now_s >= fetching[0]:
            served, fetching = fetching[1], None
        at = replace(engine("a", served), heard_s=now_s)
        picture = replace(
            seen(at, newest=newest, publish_s=publish_s),
            now_s=now_s,
            newest_since_s=newest * 10.0,
            standing=Standing(publish=standing),
        )
        step = next_publish(picture, settings)
        if step is not None:
            num_published += step.publish.version > standing.version
            standing = step.publish
        if fetching is None and standing.version.step > served:
            fetching = (now_s + publish_s, standing.version.step)
        worst = max(worst, newest - served)
    return worst, num_published


@pytest.mark.parametrize("publish_s", [0.5, 6.0, 15.0, 28.0], ids=lambda seconds: f"a publish of {seconds:g} s")
@pytest.mark.parametrize("within", [0, 1, 2, 5])
def test_over_a_run_fewer_versions_go_out_and_no_engine_comes_to_the_bound(within: int, publish_s: float) -> None:
    always, _ = course(SchedulerSettings(publish_cheap_share=1e9, settle_s=1.0), publish_s=publish_s)
    worst, num_published = course(SchedulerSettings(publish_within_versions=within, settle_s=1.0), publish_s=publish_s)
    assert worst <= max(ETA - 1, always)
    assert num_published <= 99, "the version of the last step is of no use"
    if publish_s < 10:
        assert num_published <= 100 / (min(within, ETA - 3) + 1), "those in between were skipped"
    if not within and publish_s < 5:
        assert num_published == 99, "where it is cheap every version goes out"


def manifest(*, encoding: str = "full", delta: int = 0, listed: int = 0) -> Manifest:
    return Manifest(
        run="r",
        version=v(1),
        encoding=encoding,
        tensors=(TensorEntry(name="w", dtype="F32", shape=(1,), num_bytes=1000),),
        chunks=(ChunkRef(digest="0" * 64, num_bytes=30 if encoding == "delta" else 1000),),
        delta_chunks=(ChunkRef(digest="1" * 64, num_bytes=delta),) if delta else (),
        delta_bytes=listed,
        state_digest="0" * 64,
        num_bytes=1000,
        seeds=(),
        created_unix_ms=0,
    )


def test_what_is_on_the_way_is_the_delta_where_there_is_one() -> None:
    found = [manifest(), manifest(encoding="delta"), manifest(delta=20), manifest(listed=10)]
    assert [travel_bytes(each) for each in found] == [1000, 30, 20, 10]


def swapped(step: int, fetch_s: float) -> StageEvent:
    version = Version(lineage=1, step=step)
    return StageEvent(
        run="r", stage="rollout", instance="a", kind="notice", name="swapped", seq=step, version=version,
        gauges={"fetch_s": fetch_s}, monotonic_s=0, unix_ms=0,
    )  # fmt: skip


def test_a_publish_takes_the_median_fetch_by_its_size_and_the_load() -> None:
    cost, sizes = PublishCost(), {v(1): 100, v(2): 100, v(3): 100}
    load = {("rollout", "swapping"): PhaseTime(typical_s=0.5, high_s=0.5, num_spans=3)}
    assert cost.publish_s(100, times=load) is None
    for step, fetch_s in ((1, 2.0), (2, 90.0), (3, 1.0), (4, math.nan)):
        cost.add(swapped(step, fetch_s), sizes=sizes)
    assert cost.publish_s(100, times={}) is None
    assert cost.publish_s(100, times=load) == pytest.approx(2.5)
    assert cost.publish_s(1000, times=load) == pytest.approx(20.5), "an anchor"
    assert cost.publish_s(None, times=load) == pytest.approx(2.5)
