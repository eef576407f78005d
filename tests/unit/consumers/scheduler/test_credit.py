"""The measured publish lag: what is seen, and what is commanded."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.scheduler.credit import LateAlarm, next_credit
from consumers.scheduler.policy import decide
from consumers.scheduler.publish_lag import LEAST_GROUPS, NUM_GROUPS, LagSeen, PublishLag
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Credited, Snapshot, Standing
from schemas.records import StageEvent
from tests.unit.consumers.scheduler.rig import Rig, engines_heard, turn_until
from tests.unit.consumers.scheduler.test_waves import v
from topics.clock import Deadline

SETTINGS = SchedulerSettings(credit_hold_s=30.0)
NOW_S = 1000.0
Counts = Mapping[int, float]


def heartbeat(counts: Counts, *, instance: str = "a", seq: int = 0) -> StageEvent:
    gauges = {f"groups_begun{{behind={behind}}}": float(num) for behind, num in counts.items()}
    return StageEvent(
        run="r", stage="rollout", instance=instance, kind="heartbeat", name="heartbeat", seq=seq, gauges=gauges,
        monotonic_s=0, unix_ms=0,
    )  # fmt: skip


def swapped(step: int, *, lineage: int = 1) -> StageEvent:
    return StageEvent(
        run="r", stage="rollout", instance="a", kind="notice", name="swapped", seq=step, version=v(step, lineage),
        monotonic_s=0, unix_ms=0,
    )  # fmt: skip


def lag(*heartbeats: StageEvent) -> PublishLag:
    folded = PublishLag()
    for each in (heartbeat({}), *heartbeats):
        folded.add(each, newest=None)
    return folded


def test_a_lag_that_stands_far_above_the_bound_is_not_come_down_from_one_by_one() -> None:
    step = next_credit(snapshot({0: 500}, lag=5000, since_s=0.0), SETTINGS)
    assert step is not None
    assert step.lag == 0


@pytest.mark.parametrize(
    ("counts", "versions"),
    [
        ({0: LEAST_GROUPS - 1}, None),
        ({0: 100}, 0),
        ({0: 96, 1: 4}, 0),
        ({0: 94, 1: 6}, 1),
        ({0: 50, 1: 46, 7: 4}, 1),
        ({1: 50, 3: 50}, 3),
    ],
)
def test_d_is_the_95th_percentile_of_groups_begun(counts: Counts, versions: int | None) -> None:
    assert lag(heartbeat(counts)).seen().versions == versions


def test_counters_count_what_they_grew_by_and_begin_anew_with_their_process() -> None:
    folded = lag(heartbeat({0: 100}), heartbeat({0: 110, 1: 10}))
    assert folded.seen().begun == {0: 110, 1: 10}
    folded.add(heartbeat({0: 900, 2: 900}, instance="b"), newest=None)
    assert folded.seen().begun == {0: 110, 1: 10}, "when that was is not known"
    folded.add(heartbeat({0: 905, 2: 901}, instance="b"), newest=None)
    folded.forget("a")
    folded.add(heartbeat({0: 3}), newest=None)
    folded.add(heartbeat({0: 1, 1: 1}), newest=None)
    assert folded.seen().begun == {0: 115, 1: 11, 2: 1}


def test_the_last_groups_count_and_what_is_no_count_does_not() -> None:
    folded = lag(heartbeat({3: 1000}), *(heartbeat({0: 50 * n, 3: 1000}) for n in range(1, 7)))
    assert folded.seen().begun == {0: 300}, f"the last {NUM_GROUPS} or some more"
    bad = heartbeat({0: 300, 3: 1000, 5: math.nan, 6: -4.0}, instance="a")
    folded.add(bad, newest=None)
    assert not {5, 6} & folded.seen().begun.keys()


def test_versions_that_came_while_one_travelled_count_as_well() -> None:
    """Engines beyond the bound begin nothing, so groups alone would show no lag."""
    folded = lag(heartbeat({0: 100}))
    for step in range(1, 11):
        folded.add(swapped(step), newest=v(step + 3))
        folded.add(swapped(step, lineage=2), newest=v(step + 9))
        folded.add(swapped(step), newest=None)
    seen = folded.seen()
    assert (seen.at_swap, seen.versions) == (3, 3)


def snapshot(begun: Counts, *, lag: int | None = None, since_s: float = 100.0, eta: int | None = 3) -> Snapshot:
    credit = None if lag is None else Credited(lag=lag, at_s=NOW_S - since_s)
    return Snapshot(
        now_s=NOW_S,
        observed_s=100.0,
        publish_lag=LagSeen(begun=begun),
        max_staleness=eta,
        standing=Standing(credit=credit, heartbeat_s=NOW_S),
    )


@pytest.mark.parametrize(
    ("picture", "wanted"),
    [
        (snapshot({0: 10}), None),
        (snapshot({0: 100}), None),
        (snapshot({0: 50, 1: 50}), 1),
        (snapshot({0: 50, 1: 50}, lag=1), None),
        (snapshot({0: 50, 2: 50}, lag=1, since_s=0.1), 2),
        (snapshot({9: 100}), 4),
        (snapshot({9: 100}, lag=4), None),
        (snapshot({0: 97, 1: 3}, lag=1), None),
        (snapshot({0: 100}, lag=1), 0),
        (snapshot({0: 100}, lag=3), 2),
        (snapshot({0: 100}, lag=1, since_s=29.0), None),
        (snapshot({0: 10}, lag=2), None),
        (snapshot({0: 50, 1: 50}, eta=None), None),
        (snapshot({1: 85, 2: 15}, eta=2), 1),
        (snapshot({1: 70, 2: 30}, eta=2), 2),
        (snapshot({1: 85, 2: 15}, eta=2, lag=2), None),
        (snapshot({1: 95, 2: 5}, eta=2, lag=2), 1),
        (snapshot({0: 60, 1: 40}, eta=0), 1),
    ],
    ids=[
        "too few groups",
        "no lag is what counts already",
        "up",
        "stands",
        "up at once",
        "beyond the bound it has no further effect",
        "and stands there",
        "down: still too many",
        "down",
        "down by one",
        "down: too soon",
        "unknown holds",
        "no bound known",
        "one batch only when many are late",
        "and then it is",
        "down from one batch: still too many",
        "down from one batch",
        "on-policy there is one batch in any case",
    ],
)
def test_what_is_commanded(picture: Snapshot, wanted: int | None) -> None:
    step = next_credit(picture, SETTINGS)
    assert (None if step is None else step.lag) == wanted
    drafts = [each for each in decide(picture, SETTINGS) if each.kind == "credit"]
    assert [(each.target, each.rate) for each in drafts] == ([] if wanted is None else [("prompts", float(wanted))])


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0.1, 5)), min_size=20, max_size=60))
def test_a_lag_that_wobbles_around_its_threshold_does_not_flutter(course: list[tuple[float, float]]) -> None:
    """Case 47 (e), for the lag of versions."""
    standing: Credited | None = None
    now_s, changes = 0.0, 0
    for share, wait_s in course:
        now_s += wait_s
        begun = {0: 256 * (1 - share), 1: 256 * share}
        picture = Snapshot(
            now_s=now_s,
            observed_s=now_s,
            publish_lag=LagSeen(begun=begun),
            max_staleness=2,
            standing=Standing(credit=standing),
        )
        step = next_credit(picture, SETTINGS)
        if step is not None:
            standing, changes = Credited(lag=step.lag, at_s=now_s), changes + 1
    assert changes <= 2 + 2 * now_s / SETTINGS.credit_hold_s


def test_versions_that_arrive_too_late_are_told_once() -> None:
    told: list[tuple[int, int]] = []
    alarm = LateAlarm(lambda lag, bound: told.append((lag, bound)))
    late, well, unknown = ({4: 20.0}, {0: 20.0}, {4: 2.0})
    for swaps in (unknown, late, late, unknown, late, well, late):
        alarm.look(Snapshot(now_s=0, observed_s=9, publish_lag=LagSeen(swapped=swaps), max_staleness=3))
    assert told == [(4, 3), (4, 3)], "again after it had been well"


def test_a_measured_lag_is_commanded_and_read_back_by_the_next_scheduler(rig: Rig) -> None:
    first = rig.scheduler()
    engine = rig.engine("a")
    engine.events.heartbeat()
    turn_until(first, lambda: engines_heard(first) == ["a"])
    for behind, num in (("0", 20), ("1", 20)):
        engine.metrics.count("groups_begun", num, behind=behind)
    engine.events.heartbeat()
    turn_until(first, lambda: len(rig.commands("credit")) == 1)
    command = rig.commands("credit")[0]
    assert (command.target, command.rate, command.assumed["measured"]) == ("prompts", 1.0, "1")
    rig.started.remove(first)
    first.stop(deadline=Deadline.after(5))
    second = rig.scheduler()
    assert second._commands.standing.credit is not None
    assert second._commands.standing.credit.lag == 1
    engine.events.heartbeat()
    turn_until(second, lambda: bool(rig.commands("heartbeat")) and rig.commands("heartbeat")[-1].epoch == 2)
    assert len(rig.commands("credit")) == 1, "it knows too little yet to say anything else"
