"""Replicas: decisions as tables for each policy, and what holds for every one of them as properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler import reactive, stage_aware
from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.pool import SAMPLES_MADE
from consumers.scheduler.scaling import Wish, scale
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Scalable, Scaled, Snapshot, Standing
from consumers.scheduler.stage_clock import STEP, PhaseTime
from schemas.records import Version

SETTINGS = SchedulerSettings()
NOW_S = 1000.0
GROUP, REWARD, REFERENCE = "rlweave.r.rollout", "rlweave.r.reward.math", "rlweave.r.reference"
ROLLOUTS = Scalable(target="rollout", group=GROUP, least=1, most=6, initial=2)
REWARDS = Scalable(target="reward.math", group=REWARD, least=1, most=4, initial=2)
READ = (REWARD, "records_read{topic=samples}")
Decide = Callable[[Snapshot, SchedulerSettings], list[CommandDraft]]


def seen(stage: str, number: int, *, silent_s: float = 0.0, **gauges: float) -> InstanceSeen:
    return InstanceSeen(
        stage=stage,
        instance=f"{stage}-{number}",
        phase="generating",
        phase_since_s=NOW_S,
        heard_s=NOW_S - silent_s,
        seq=1,
        gauges=gauges,
    )


def reward(number: int) -> InstanceSeen:
    return seen("reward", number, **{f"reward_weight{{reward=math,group={REWARD}}}": 1.0})


def run(
    *,
    rollouts: int = 2,
    waits: float = 0.5,
    use: float | None = 0.95,
    prompts: int | None = 20,
    made: float = 8.0,
    step_s: float = 2.0,
    start_s: float | None = None,
    max_steps: int = 1000,
    learner_silent_s: float = 0.0,
    standing: Standing | None = None,
) -> Snapshot:
    """8 groups of 4 per step; two producers that make 1 group per second each while all their slots are in use."""
    engines = [seen("rollout", number, free_slots=1.0, prompts_in_flight=4.0) for number in range(rollouts)]
    return Snapshot(
        now_s=NOW_S,
        observed_s=100.0,
        instances=(*engines, seen("learner", 0, silent_s=learner_silent_s), reward(0), reward(1)),
        horizon=Version(lineage=1, step=10),
        lag={(GROUP, "prompts"): prompts, (REWARD, "samples"): 0},
        rates={SAMPLES_MADE: made},
        shares={reactive.LEARNER_WAITS: waits},
        times={STEP: span(step_s)} | ({} if start_s is None else {("rollout", "starting"): span(start_s)}),
        slot_use=use,
        fleet=(ROLLOUTS,),
        groups_per_step=8,
        group_size=4,
        max_steps=max_steps,
        standing=Standing(heartbeat_s=NOW_S) if standing is None else standing,
    )


def span(typical_s: float) -> PhaseTime:
    return PhaseTime(typical_s=typical_s, high_s=typical_s, num_spans=9)


def scaled(replicas: int, *, ago_s: float) -> Standing:
    return Standing(heartbeat_s=NOW_S, scale={"rollout": Scaled(replicas=replicas, at_s=NOW_S - ago_s)})


def scoring(*, lag: int | None, read: float, busy: float, made: float = 8.0) -> Snapshot:
    return replace(
        run(),
        fleet=(REWARDS,),
        lag={(REWARD, "samples"): lag},
        rates={SAMPLES_MADE: made, READ: read},
        shares={(REWARD, "scoring"): busy},
    )


def referring(*, lag: int | None, read: float, busy: float, made: float = 8.0) -> Snapshot:
    """As `scoring`, of two processes of the reference model."""
    found = scoring(lag=lag, read=read, busy=busy, made=made)
    return replace(
        found,
        fleet=(Scalable(target="reference", group=REFERENCE, least=1, most=4, initial=2),),
        instances=(*found.instances[:-2], seen("reference", 0), seen("reference", 1)),
        lag={(REFERENCE, "samples"): found.lag[REWARD, "samples"]},
        rates={SAMPLES_MADE: found.rates[SAMPLES_MADE], ("reference", READ[1]): found.rates[READ]},
        shares={("reference", "scoring"): found.shares[REWARD, "scoring"]},
    )


def replicas(decide: Decide, snapshot: Snapshot) -> int | None:
    """What is commanded; None: nothing."""
    found = [draft.replicas for draft in decide(snapshot, SETTINGS) if draft.kind == "scale"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("snapshot", "commanded"),
    [
        (run(), 3),
        (run(waits=0.1), None),  # between the marks
        (run(use=0.6), None),
        (run(prompts=8), None),  # all of them were taken up
        (run(prompts=None), None),
        (run(use=None), None),
        (run(learner_silent_s=30.0), None),
        (run(waits=0.0, use=0.3), 1),
        (run(waits=0.0, use=0.6), None),
        (run(rollouts=6, standing=scaled(6, ago_s=900)), None),  # as many as there may be
        (run(rollouts=1, waits=0.0, use=0.1, standing=scaled(1, ago_s=900)), None),
        (run(standing=scaled(3, ago_s=900)), None),  # not carried out yet
        (run(standing=scaled(2, ago_s=10)), None),
        (run(standing=scaled(2, ago_s=25)), 3),
        (run(waits=0.0, use=0.3, standing=scaled(2, ago_s=25)), None),  # what was just started is kept
        (run(waits=0.0, use=0.3, standing=scaled(2, ago_s=65)), 1),
        (scoring(lag=80, read=8.0, busy=0.9), 3),
        (scoring(lag=20, read=8.0, busy=0.9), None),
        (scoring(lag=80, read=8.0, busy=0.5), None),  # behind, but not for want of time
        (scoring(lag=None, read=8.0, busy=0.9), None),
        (scoring(lag=0, read=8.0, busy=0.1), 1),
        (scoring(lag=0, read=8.0, busy=0.3), None),
        (referring(lag=80, read=8.0, busy=0.9), 3),
        (referring(lag=0, read=8.0, busy=0.1), 1),
    ],
)
def test_reactive(snapshot: Snapshot, commanded: int | None) -> None:
    assert replicas(reactive.decide, snapshot) == commanded


@pytest.mark.parametrize(
    ("snapshot", "commanded"),
    [
        (run(waits=0.0), 3),  # 4 groups per second are wanted, two make 2.1: foreseen, one at a time
        (run(waits=0.5), 3),  # the learner could do a step per second
        (run(step_s=4.0, waits=0.0), None),  # 2 groups per second: it is enough
        (run(step_s=16.0, waits=0.0), 1),
        (run(step_s=16.0, waits=0.0, use=0.01), None),  # what a full producer makes is not known
        (run(waits=0.0, use=None), None),
        (run(waits=1.0), None),  # the learner's own time is not known
        (run(waits=0.0, prompts=8), None),
        (run(waits=0.0, made=0.0), None),
        (run(waits=0.0, start_s=9.0, max_steps=15), None),  # it would be there when the run is over
        (run(waits=0.0, start_s=9.0), 3),
        (run(rollouts=4, waits=0.0, made=16.0, standing=scaled(4, ago_s=900)), None),
        (scoring(lag=80, read=8.0, busy=1.0, made=12.0), 3),
        (scoring(lag=0, read=8.0, busy=0.3), 1),
        (scoring(lag=0, read=8.0, busy=0.6), None),
        (scoring(lag=0, read=0.0, busy=0.0), None),
        (referring(lag=80, read=8.0, busy=1.0, made=12.0), 3),
    ],
)
def test_stage_aware(snapshot: Snapshot, commanded: int | None) -> None:
    assert replicas(stage_aware.decide, snapshot) == commanded


def test_ranks_are_the_learners_processes_that_are_heard() -> None:
    ranks = Scalable(target="learner", group="", least=1, most=4, initial=1)
    snapshot = replace(run(), instances=(seen("learner", 0), seen("learner", 1), seen("learner", 2, silent_s=99.0)))
    assert snapshot.replicas_heard(ranks, silence_s=SETTINGS.silence_s) == 2


def test_a_command_says_why_and_on_what_it_was_decided() -> None:
    (draft,) = [each for each in reactive.decide(run(), SETTINGS) if each.kind == "scale"]
    assert draft.reason == "2 to 3: the learner waits for data 50% of the time, 95% of the slots are in use"
    assert draft.assumed == {"replicas": "2", "learner_waits": "0.50", "slot_use": "0.95"}


def test_nothing_is_scaled_before_the_window_was_heard() -> None:
    assert replicas(reactive.decide, replace(run(), observed_s=29.0)) is None


@given(
    wishes=st.lists(st.one_of(st.none(), st.integers(-50, 50)), min_size=1, max_size=40),
    pauses=st.lists(st.floats(0.1, 50), min_size=40, max_size=40),
)
def test_whatever_is_wished_for_the_bounds_and_the_pace_hold(wishes: list[int | None], pauses: list[float]) -> None:
    now_s, wanted, changed_s = NOW_S, 2, -1e9
    for wished, pause_s in zip(wishes, pauses, strict=False):
        now_s += pause_s
        standing = Standing(heartbeat_s=now_s, scale={"rollout": Scaled(replicas=wanted, at_s=changed_s)})
        engines = tuple(replace(seen("rollout", number), heard_s=now_s) for number in range(wanted))
        at = replace(run(), now_s=now_s, instances=engines, standing=standing)
        wish = None if wished is None else Wish(replicas=wished, reason="a test")
        drafts = list(scale(at, SETTINGS, wishes=lambda *_, wish=wish, **__: wish))
        assert len(drafts) <= (wish is not None)
        for draft in drafts:
            assert draft.replicas is not None
            assert ROLLOUTS.least <= draft.replicas <= ROLLOUTS.most
            assert wanted - 1 <= draft.replicas <= wanted + max(1, wanted // 2)
            cool_down_s = SETTINGS.scale_up_cool_down_s if draft.replicas > wanted else SETTINGS.scale_down_cool_down_s
            assert now_s - changed_s >= cool_down_s
            wanted, changed_s = draft.replicas, now_s


@pytest.mark.parametrize("decide", [reactive.decide, stage_aware.decide])
@given(
    waits=st.floats(0, 1),
    use=st.one_of(st.none(), st.floats(0, 1)),
    made=st.floats(0, 1e6),
    step_s=st.floats(0, 1e6),
    rollouts=st.integers(0, 8),
)
def test_with_unknown_lag_nothing_more_is_started(
    decide: Decide, waits: float, use: float | None, made: float, step_s: float, rollouts: int
) -> None:
    standing = scaled(max(1, rollouts), ago_s=900)
    at = run(waits=waits, use=use, made=made, step_s=step_s, rollouts=rollouts, prompts=None, standing=standing)
    commanded = replicas(decide, at)
    assert commanded is None or 1 <= commanded < max(1, rollouts)


@pytest.mark.parametrize(
    ("start_s", "ago_s", "commanded"),
    [
        (None, 61.0, 1),  # not measured: the cool-down alone
        (2.0, 61.0, 1),
        (90.0, 61.0, None),
        (90.0, 269.0, None),
        (90.0, 271.0, 1),  # three starts
    ],
)
def test_what_is_expensive_to_start_is_kept_longer(start_s: float | None, ago_s: float, commanded: int | None) -> None:
    idle = run(waits=0.0, use=0.3, start_s=start_s, standing=scaled(2, ago_s=ago_s))

    assert replicas(reactive.decide, idle) == commanded
