"""The decision, as a table and as properties."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler.policy import CommandDraft, decide
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, LagKey, Publishing, Snapshot, Standing
from schemas.records import Version

SETTINGS = SchedulerSettings(heartbeat_s=1.0, silence_s=10.0, settle_s=5.0, pause_lag_records=100)
NOW_S = 1000.0
GROUP = "rlweave.r.reward.math"


def version(lineage: int, step: int) -> Version:
    return Version(lineage=lineage, step=step)


def reward(
    *,
    breaker: int = 0,
    weight: float = 1.0,
    silent_s: float = 0.0,
    instance: str = "reward-1",
    required: int | None = None,
) -> InstanceSeen:
    said = {} if required is None else {"reward_required": required}
    return InstanceSeen(
        stage="reward",
        instance=instance,
        phase="scoring",
        phase_since_s=NOW_S,
        heard_s=NOW_S - silent_s,
        seq=1,
        gauges={f"reward_weight{{reward=math,group={GROUP}}}": weight, "breaker_open": breaker} | said,
    )


def snapshot(
    *instances: InstanceSeen,
    staged: tuple[Version, ...] = (),
    published: Version | None = None,
    rate: float | None = None,
    lag: int | None = 0,
    observed_s: float = 100.0,
    heartbeat_s: float | None = NOW_S,
) -> Snapshot:
    known: Mapping[LagKey, int | None] = {(GROUP, "samples"): lag}
    return Snapshot(
        now_s=NOW_S,
        observed_s=observed_s,
        instances=instances,
        staged=staged,
        lag=known,
        standing=Standing(publish=publishing(published), rate=rate, heartbeat_s=heartbeat_s),
    )


def publishing(version: Version | None) -> Publishing | None:
    return None if version is None else Publishing(version=version)


def version_of(draft: CommandDraft) -> Version | None:
    return None if draft.publish is None else draft.publish.version


def brief(drafts: list[CommandDraft]) -> list[str]:
    return [
        f"{draft.target}/{draft.kind} {version_of(draft) if draft.kind == 'publish' else draft.rate}"
        for draft in drafts
    ]


PAUSE, LIFT = ["prompts/rate 0.0"], ["prompts/rate None"]


@pytest.mark.parametrize(
    ("seen", "commands"),
    [
        # weights
        (snapshot(), []),
        (snapshot(staged=(version(1, 0),)), ["rollout/publish 1.0"]),
        (snapshot(staged=(version(1, 0), version(1, 3)), published=version(1, 0)), ["rollout/publish 1.3"]),
        (snapshot(staged=(version(1, 3),), published=version(1, 3)), []),
        (snapshot(staged=(version(1, 9), version(2, 4)), published=version(1, 9)), ["rollout/publish 2.4"]),
        (snapshot(staged=(version(1, 2),), published=version(1, 3)), []),
        # heartbeat
        (snapshot(heartbeat_s=None), ["all/heartbeat None"]),
        (snapshot(heartbeat_s=NOW_S - 0.9), []),
        (snapshot(heartbeat_s=NOW_S - 1.0), ["all/heartbeat None"]),
        # the breaker of a required reward
        (snapshot(reward(breaker=1)), PAUSE),
        (snapshot(reward(breaker=1), rate=0.0), []),
        (snapshot(reward(breaker=0), rate=0.0), LIFT),
        (snapshot(reward(breaker=1, weight=0.0)), []),
        (snapshot(reward(breaker=1, weight=0.0, required=1)), PAUSE),  # a gate
        (snapshot(reward(breaker=1, weight=1.0, required=0)), []),  # an optional one
        (snapshot(reward(breaker=1, silent_s=11.0)), []),
        (snapshot(reward(breaker=1, silent_s=11.0), rate=0.0), []),
        (snapshot(reward(breaker=0), reward(breaker=1, instance="reward-2"), rate=0.0), []),
        (snapshot(rate=0.0), LIFT),
        (snapshot(rate=0.0, observed_s=4.9), []),
        (snapshot(rate=3.0), []),
        # lag of a required reward
        (snapshot(reward(), lag=101), PAUSE),
        (snapshot(reward(), lag=100), []),
        (snapshot(reward(), lag=100, rate=0.0), []),
        (snapshot(reward(), lag=51, rate=0.0), []),
        (snapshot(reward(), lag=50, rate=0.0), LIFT),
        (snapshot(reward(), lag=None), []),
        (snapshot(reward(), lag=None, rate=0.0), []),
        (snapshot(reward(weight=0.0), lag=10_000), []),
        (snapshot(reward(breaker=1), lag=None), PAUSE),
    ],
)
def test_table(seen: Snapshot, commands: list[str]) -> None:
    assert brief(decide(seen, SETTINGS)) == commands


def test_publishing_comes_first_and_commands_say_why() -> None:
    drafts = decide(snapshot(reward(breaker=1), staged=(version(1, 1),), heartbeat_s=None), SETTINGS)
    assert [draft.kind for draft in drafts] == ["publish", "rate", "heartbeat"]
    assert drafts[0].assumed == {"staged": "1.1", "published": "None", "served": ""}
    assert drafts[1].reason == "pause admission: breaker of math in reward-1"
    assert drafts[1].assumed["breaker of math in reward-1"] == "pause"


def test_lag_is_not_looked_at_unless_asked() -> None:
    settings = SETTINGS.model_copy(update={"pause_lag_records": None})
    assert decide(snapshot(reward(), lag=10**9), settings) == []
    assert brief(decide(snapshot(reward(), lag=None, rate=0.0), settings)) == LIFT


rewards = st.builds(
    reward,
    breaker=st.integers(0, 1),
    weight=st.sampled_from([0.0, 1.0, -0.5]),
    silent_s=st.floats(0, 60),
    instance=st.sampled_from(["a", "b"]),
)
versions = st.builds(version, st.integers(1, 3), st.integers(0, 5))
snapshots = st.builds(
    lambda one, two, staged, published, rate, lag, observed_s, heartbeat_s: snapshot(
        one,
        two,
        staged=tuple(sorted(set(staged))),
        published=published,
        rate=rate,
        lag=lag,
        observed_s=observed_s,
        heartbeat_s=heartbeat_s,
    ),
    rewards,
    rewards,
    st.lists(versions, max_size=4),
    st.none() | versions,
    st.sampled_from([None, 0.0, 2.0]),
    st.none() | st.integers(0, 500),
    st.floats(0, 20),
    st.none() | st.floats(NOW_S - 5, NOW_S),
)


@given(snapshots)
def test_one_command_per_key_bounded_and_repeatable(seen: Snapshot) -> None:
    drafts = decide(seen, SETTINGS)
    assert drafts == decide(seen, SETTINGS)
    assert len({(draft.target, draft.kind) for draft in drafts}) == len(drafts) <= 3
    assert all(draft.reason for draft in drafts)
    assert all(draft.replicas is None and draft.drain is None for draft in drafts)


@given(snapshots)
def test_only_the_newest_staged_version_is_published_and_never_an_older_one(seen: Snapshot) -> None:
    for draft in decide(seen, SETTINGS):
        if draft.kind == "publish":
            version = version_of(draft)
            assert version is not None
            assert version == max(seen.staged)
            assert seen.standing.published is None or version > seen.standing.published


@given(snapshots)
def test_a_decision_carried_out_leaves_nothing_to_do(seen: Snapshot) -> None:
    standing = seen.standing
    publish, rate = standing.publish, standing.rate
    for draft in decide(seen, SETTINGS):
        publish = draft.publish if draft.kind == "publish" else publish
        rate = draft.rate if draft.kind == "rate" else rate
    after = Standing(publish=publish, rate=rate, heartbeat_s=NOW_S)
    settled = Snapshot(
        now_s=NOW_S,
        observed_s=seen.observed_s,
        instances=seen.instances,
        staged=seen.staged,
        lag=seen.lag,
        standing=after,
    )
    assert decide(settled, SETTINGS) == []


@given(
    st.lists(st.builds(reward, breaker=st.just(0), silent_s=st.floats(0, 60)), max_size=3), st.sampled_from([None, 0.0])
)
def test_unknown_lag_changes_nothing(instances: list[InstanceSeen], rate: float | None) -> None:
    """Case 47."""
    required = [seen for seen in instances if seen.reward is not None and seen.reward.required]
    drafts = decide(snapshot(*instances, lag=None, rate=rate), SETTINGS)
    assert not required or drafts == []


@pytest.mark.parametrize("unknown", [False, True])
def test_a_lag_that_wobbles_around_its_threshold_switches_once(unknown: bool) -> None:
    """Case 47 (e): and (b), (c) with it, when every other answer is none."""
    lags: list[int | None] = [99, 101, 99, 102, 98, 101, 60, 99, 101, 51, 99, 103]
    if unknown:
        lags = [each for lag in lags for each in (lag, None)]
    rate: float | None = None
    said: list[float | None] = []
    for lag in [*lags, 50, *lags[:1], 50, None]:
        for draft in decide(snapshot(reward(), lag=lag, rate=rate), SETTINGS):
            rate = draft.rate
            said.append(draft.rate)
            assert draft.replicas is None
    assert said == [0.0, None], "paused at 101, lifted at half of the limit, and not once in between"
