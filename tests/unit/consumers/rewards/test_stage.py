"""A reward consumer over the memory log: records, commits, faults of the plug-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumers.rewards.settings import RewardSettings
from consumers.rewards.stage import RewardStage
from schemas.codec import encode
from schemas.errors import LeaseHeld, SettingsError
from schemas.records import StageEvent
from tests.unit.consumers.rewards import plugins
from tests.unit.consumers.rewards.helpers import HERE, Rig, read_all, rewards_of, sample, turn_until, write_samples
from topics.catalog import DEAD_LETTERS, EVENTS, REWARDS, SAMPLES, SHADOW_REWARDS
from topics.clock import Deadline
from topics.log import WriterSettings

GROUP = "rlweave.r.reward.math"


@pytest.fixture
def rig() -> Iterator[Rig]:
    plugins.tries.clear()
    plugins.hang.clear()
    plugins.down.clear()
    rig = Rig()
    yield rig
    plugins.hang.set()
    for stage in rig.started:
        stage.stop(deadline=Deadline.after(5))


def done(rig: Rig, number: int) -> bool:
    return len(rewards_of(rig.log, REWARDS)) >= number and rig.lag() == 0


@pytest.mark.parametrize("plugin", ["exact_match", f"{HERE}:length", f"{HERE}:slow_length", f"{HERE}:Batched"])
def test_every_sample_gets_one_reward(rig: Rig, plugin: str) -> None:
    write_samples(rig.log, (sample(group, member) for group in range(20) for member in range(4)))
    stage = rig.stage(plugin=plugin, weight=0.5)
    turn_until(stage, lambda: done(rig, 80))
    rewards = rewards_of(rig.log, REWARDS)
    assert {(one.group, one.member) for one in rewards} == {
        (group, member) for group in range(20) for member in range(4)
    }
    assert len(rewards) == 80
    assert {(one.name, one.weight, one.value, one.failure, one.attempt) for one in rewards} == {
        ("math", 0.5, 1.0, None, "a")
    }
    offsets = {(one.group % 2, one.sample_offset) for one in rewards}
    assert offsets == {(partition, offset) for partition in range(2) for offset in range(40)}


def test_weight_0_is_shadow_and_starts_at_the_first_sample(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(10)))
    turn_until(rig.stage(plugin="exact_match"), lambda: done(rig, 10))
    late = rig.stage("late", plugin=f"{HERE}:length", weight=0.0)
    turn_until(late, lambda: len(rewards_of(rig.log, SHADOW_REWARDS)) == 10)
    assert {one.name for one in rewards_of(rig.log, REWARDS)} == {"math"}
    assert {one.name for one in rewards_of(rig.log, SHADOW_REWARDS)} == {"late"}


def test_a_failed_sample_gets_no_reward_and_is_committed(rig: Rig) -> None:
    write_samples(rig.log, [sample(0), sample(1, failure="engine_failed"), sample(2)])
    stage = rig.stage(plugin="exact_match")
    turn_until(stage, lambda: done(rig, 2))
    assert [one.group for one in sorted(rewards_of(rig.log, REWARDS), key=lambda one: one.group)] == [0, 2]


def test_an_undecodable_sample_is_a_dead_letter_and_lag_reaches_0(rig: Rig) -> None:
    """Case 6."""
    write_samples(rig.log, [sample(0)])
    writer = rig.log.writer(WriterSettings())
    writer.write_raw(SAMPLES, key=b"2", value=b"not avro", partition=0)
    writer.write_raw(SAMPLES, key=b"2", value=encode(sample(2))[:-1], partition=0)
    writer.flush(deadline=Deadline.after(5))
    write_samples(rig.log, (sample(group) for group in range(4, 504)))
    stage = rig.stage(plugin="exact_match")
    turn_until(stage, lambda: done(rig, 501))
    assert len(read_all(rig.log, DEAD_LETTERS)) == 2
    stage.stop(deadline=Deadline.after(5))
    rig.started.clear()
    again = rig.stage(plugin="exact_match")
    again.turn()
    again.turn()
    assert len(rewards_of(rig.log, REWARDS)) == 501, "a restart scored again"


def test_a_sample_whose_scorer_never_returns_is_named_and_holds_up_no_other(rig: Rig) -> None:
    """Case 6, the variant."""
    write_samples(rig.log, (sample(group) for group in (1, 0, 2, 3, 4)))
    stage = rig.stage(plugin=f"{HERE}:hangs_on_1", stuck_after_s=0.2)
    turn_until(stage, lambda: bool(rig.events("record_stuck")))
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) == 4)
    (event,) = rig.events("record_stuck")
    assert event.details["text"].startswith("reward math has had sample 1/0 for ")
    assert (event.details["topic"], event.details["partition"], event.details["reward"]) == ("samples", "1", "math")
    assert event.gauges["offset"] == 0
    assert event.gauges["group"] == 1
    assert event.gauges["waited_s"] >= 0.2
    committed = {each.partition: each.committed for each in rig.log.admin().lag(GROUP, [SAMPLES])}
    assert committed.get(1) in (None, 0), "an offset was committed past a sample without an outcome"
    plugins.hang.set()
    turn_until(stage, lambda: done(rig, 5))
    assert len(rig.events("record_stuck")) == 1


def test_another_plugin_under_a_live_group_id_is_refused(rig: Rig) -> None:
    """Case 7."""
    first = rig.stage("one", plugin="exact_match", group="shared")
    first.turn()
    with pytest.raises(LeaseHeld, match=r"'shared' is in use by '.*@one#"):
        rig.stage("two", plugin="number_match", group="shared")
    with pytest.raises(LeaseHeld):
        rig.stage("one", plugin="exact_match", group="shared", weight=0.0)
    replica = rig.stage("one", plugin="exact_match", group="shared")
    replica.turn()


def test_of_two_that_raced_for_a_group_id_exactly_one_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 7."""
    monkeypatch.setattr("consumers.rewards.claim.check_free", lambda *_, **__: None)  # both looked before both joined
    monkeypatch.setattr("consumers.rewards.stage.RECHECK_S", 0.0)
    stages = [rig.stage(name, plugin="exact_match", group="shared") for name in ("one", "two")]
    left = []
    for stage in stages:
        try:
            stage.turn()
        except LeaseHeld as error:
            left.append(error)
    assert len(left) == 1


def test_samples_lost_to_retention_are_counted_and_the_rest_scored(rig: Rig) -> None:
    """Case 8."""
    write_samples(rig.log, (sample(2 * number) for number in range(100)))
    stage = rig.stage(plugin="exact_match")
    # Partition 1 has no sample: its position is committed all the same, so lag is known.
    turn_until(stage, lambda: done(rig, 100))
    stage.stop(deadline=Deadline.after(5))
    rig.started.clear()
    write_samples(rig.log, (sample(2 * number) for number in range(100, 500)))
    rig.log.delete_records({("samples", 0): 300})
    turn_until(rig.stage(plugin="exact_match"), lambda: done(rig, 300))
    assert sorted(one.sample_offset for one in rewards_of(rig.log, REWARDS)) == [*range(100), *range(300, 500)]
    (event,) = rig.events("offsets_lost")
    assert event.gauges["num_lost"] == 200


def test_an_error_is_a_failure_of_that_sample_only(rig: Rig) -> None:
    """Case 22."""
    write_samples(rig.log, (sample(group) for group in range(1000)))
    turn_until(rig.stage(plugin=f"{HERE}:raises_on_13"), lambda: done(rig, 1000))
    rewards = rewards_of(rig.log, REWARDS)
    assert [(one.group, one.value, one.failure) for one in rewards if one.failure is not None] == [
        (13, None, "ZeroDivisionError: thirteen")
    ]
    assert len(rewards) == 1000


def test_a_batch_that_raises_is_scored_one_by_one(rig: Rig) -> None:
    """Case 22."""
    write_samples(rig.log, (sample(group, completion_text="bad" if group == 13 else "x") for group in range(64)))
    turn_until(rig.stage(plugin=f"{HERE}:Batched"), lambda: done(rig, 64))
    failures = [one for one in rewards_of(rig.log, REWARDS) if one.failure is not None]
    assert [(one.group, one.failure) for one in failures] == [(13, "ValueError: a bad item")]


def test_a_batch_of_the_wrong_length_is_a_failure(rig: Rig) -> None:
    write_samples(rig.log, [sample(0), sample(1)])
    turn_until(rig.stage(plugin=f"{HERE}:ShortBatch"), lambda: done(rig, 2))
    assert {one.failure for one in rewards_of(rig.log, REWARDS)} == {
        "ValueError: score_batch returned 0 values for 1 samples"
    }


@pytest.mark.parametrize(
    ("plugin", "failure"),
    [("alarm", "ValueError: signal only works in main thread"), ("leaves", "SystemExit: 3")],
)
def test_an_error_off_the_main_thread_is_never_a_0(rig: Rig, plugin: str, failure: str) -> None:
    """Case 20: the swallowed error; and a scorer that wants to end the process."""
    write_samples(rig.log, [sample(0), sample(1)])
    turn_until(rig.stage(plugin=f"{HERE}:{plugin}"), lambda: done(rig, 2))
    assert {(one.value, (one.failure or "").startswith(failure)) for one in rewards_of(rig.log, REWARDS)} == {
        (None, True)
    }


def test_what_is_not_a_number_is_a_failure(rig: Rig) -> None:
    """Case 20."""
    texts = ["nan", "inf", "none", "true", "text"]
    write_samples(rig.log, (sample(group, completion_text=text) for group, text in enumerate(texts)))
    turn_until(rig.stage(plugin=f"{HERE}:bad_number"), lambda: done(rig, 5))
    found = {one.group: (one.value, (one.failure or "").split(":")[0]) for one in rewards_of(rig.log, REWARDS)}
    assert found == {
        0: (None, "non_finite"),
        1: (None, "non_finite"),
        2: (None, "not_a_number"),
        3: (None, "not_a_number"),
        4: (None, "not_a_number"),
    }


def test_transient_errors_are_tried_again(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(10)))
    turn_until(rig.stage(plugin=f"{HERE}:flaky", retries=2, retry_backoff_s=0.02), lambda: done(rig, 10))
    assert {one.value for one in rewards_of(rig.log, REWARDS)} == {1.0}
    assert set(plugins.tries.values()) == {3}


def test_after_the_last_try_a_transient_error_is_a_failure(rig: Rig) -> None:
    write_samples(rig.log, [sample(0)])
    turn_until(rig.stage(plugin=f"{HERE}:flaky", retries=1, retry_backoff_s=0.02), lambda: done(rig, 1))
    (reward,) = rewards_of(rig.log, REWARDS)
    assert reward.failure == "ConnectionResetError: 503 (after 1 retries)"


def test_a_remote_scorer_that_was_away_scores_everything_afterwards(rig: Rig) -> None:
    """Case 22: 503 for a while, then an answer."""
    plugins.down.set()
    write_samples(rig.log, (sample(group) for group in range(50)))
    stage = rig.stage(plugin=f"{HERE}:remote", retries=50, retry_backoff_s=0.02, retry_backoff_max_s=0.05)
    for _ in range(20):
        stage.turn()
    assert rewards_of(rig.log, REWARDS) == []
    plugins.down.clear()
    turn_until(stage, lambda: done(rig, 50))
    assert [one.value for one in rewards_of(rig.log, REWARDS)] == [1.0] * 50


def test_the_breaker_stops_a_scorer_that_always_raises_and_lets_it_back(rig: Rig) -> None:
    """Case 20: raises on every call."""
    plugins.down.set()
    write_samples(rig.log, (sample(group) for group in range(200)))
    stage = rig.stage(
        plugin=f"{HERE}:breaks_when_told", breaker_window=10, breaker_pause_s=0.3, max_in_flight=64, num_workers=2
    )
    turn_until(stage, lambda: bool(rig.events("breaker_opened")))
    for _ in range(20):
        stage.turn()
    failed = rewards_of(rig.log, REWARDS)
    assert all(one.value is None and one.failure == "RuntimeError: broken" for one in failed)
    assert len(failed) < 200, "the breaker did not hold the rest"
    (opened,) = rig.events("breaker_opened")
    assert opened.details["reward"] == "math"
    assert opened.details["required"] == "true"
    assert opened.details["last_failure"].endswith("RuntimeError: broken")
    assert opened.gauges["failure_share"] > 0.5
    assert opened.details["text"].endswith(" of its last 10 samples failed (100%); most often: RuntimeError: broken")
    heartbeats = [event for event in read_all(rig.log, EVENTS) if isinstance(event, StageEvent)]
    assert any(event.gauges.get("breaker_open") == 1 for event in heartbeats)
    assert any(event.gauges.get(f"reward_weight{{reward=math,group={GROUP}}}") == 1.0 for event in heartbeats)
    plugins.down.clear()
    turn_until(stage, lambda: done(rig, 200))
    rewards = rewards_of(rig.log, REWARDS)
    assert len(rewards) == 200
    assert {one.value for one in rewards} == {None, 1.0}
    assert len(rig.events("breaker_closed")) == 1


def test_a_breaker_without_a_sample_to_try_lets_admission_go_on(rig: Rig) -> None:
    """Admission pauses while the gauge is 1: with nothing left to probe with, it would do so for ever."""
    plugins.down.set()
    write_samples(rig.log, (sample(group) for group in range(20)))
    stage = rig.stage(plugin=f"{HERE}:breaks_when_told", breaker_window=20, breaker_pause_s=0.1)
    turn_until(stage, lambda: bool(rig.events("breaker_half_open")))
    assert stage._context.metrics.snapshot()["breaker_open"] == 0
    write_samples(rig.log, [sample(20)])
    turn_until(stage, lambda: len(rig.events("breaker_opened")) == 2)
    plugins.down.clear()
    write_samples(rig.log, (sample(group) for group in range(21, 30)))
    turn_until(stage, lambda: done(rig, 30))
    assert sorted(one.group for one in rewards_of(rig.log, REWARDS) if one.value == 1.0) == list(range(21, 30))


def test_no_more_than_the_limit_is_taken(rig: Rig) -> None:
    write_samples(rig.log, (sample(1, member) for member in range(100)))
    stage = rig.stage(plugin=f"{HERE}:hangs_on_1", max_in_flight=8)
    for _ in range(10):
        stage.turn()
    taken = [value for name, value in stage._context.metrics.snapshot().items() if name.startswith("records_read")]
    assert taken == [8.0]
    plugins.hang.set()
    turn_until(stage, lambda: done(rig, 100))


def test_a_stop_finishes_what_was_taken(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(100)))
    stage = rig.stage(plugin=f"{HERE}:slow_length", max_in_flight=50)
    while not any(name.startswith("records_read") for name in stage._context.metrics.snapshot()):
        stage.turn()
    stage.stop(deadline=Deadline.after(10))
    rig.started.clear()
    scored = len(rewards_of(rig.log, REWARDS))
    committed = sum(each.committed or 0 for each in rig.log.admin().lag(GROUP, [SAMPLES]))
    assert scored == committed > 0
    turn_until(rig.stage(plugin=f"{HERE}:slow_length"), lambda: done(rig, 100))
    assert len(rewards_of(rig.log, REWARDS)) == 100, "a sample was scored twice over an orderly stop"


def test_a_stop_does_not_wait_for_a_hung_scorer(rig: Rig) -> None:
    """Case 45."""
    write_samples(rig.log, [sample(1), sample(0)])
    stage = rig.stage(plugin=f"{HERE}:hangs_on_1")
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) == 1)
    deadline = Deadline.after(6.0)
    stage.stop(deadline=deadline)
    rig.started.clear()
    assert not deadline.expired
    committed = {each.partition: each.committed for each in rig.log.admin().lag(GROUP, [SAMPLES])}
    assert committed == {0: 1, 1: 0}


def test_replicas_share_the_samples(rig: Rig) -> None:
    first, second = rig.stage(plugin="exact_match"), rig.stage(plugin="exact_match")
    write_samples(rig.log, (sample(group) for group in range(100)))

    def both_until() -> bool:
        second.turn()
        return done(rig, 100)

    turn_until(first, both_until)
    assert len({one.producer for one in rewards_of(rig.log, REWARDS)}) == 2


def test_a_revoked_partition_is_left_to_its_new_owner(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in (1, 0)))
    first = rig.stage(plugin=f"{HERE}:hangs_on_1", num_workers=1)
    for _ in range(3):
        first.turn()
    plugins_free = rig.stage(plugin=f"{HERE}:hangs_on_1", num_workers=1)
    for _ in range(4):
        first.turn()
        plugins_free.turn()
    plugins.hang.set()

    def both_until() -> bool:
        plugins_free.turn()
        return done(rig, 2)

    turn_until(first, both_until)
    assert len(rewards_of(rig.log, REWARDS)) == 2


def test_a_bad_reward_name_is_refused(rig: Rig) -> None:
    with pytest.raises(SettingsError, match="'My Reward'"):
        RewardStage(rig.context(), name="My Reward", settings=RewardSettings(plugin="exact_match"))
