"""What a person sees of a run, folded from events."""

from __future__ import annotations

from collections.abc import Mapping

from ops.progress import RunView
from schemas.records import StageEvent


def event(
    instance: str,
    *,
    kind: str = "heartbeat",
    name: str = "heartbeat",
    at_s: float = 0.0,
    gauges: Mapping[str, float] | None = None,
) -> StageEvent:
    stage = instance.partition("-")[0].partition(".")[0]
    return StageEvent(
        run="r",
        stage=stage,
        instance=instance,
        kind=kind,
        name=name,
        seq=0,
        gauges=gauges if gauges is not None else {},
        monotonic_s=at_s,
        unix_ms=0,
    )


def test_a_killed_learner_is_succeeded_and_rollouts_add_up() -> None:
    view = RunView()
    for instance, groups in (("learner-a", 60.0), ("learner-b", 20.0), ("rollout-a", 5.0), ("rollout-b", 6.0)):
        view.add(event(instance, gauges={"open_groups": groups}))
    assert view.gauge("learner", "open_groups") == 20.0
    assert view.gauge("rollout", "open_groups") == 11.0
    view.add(event("learner-a", gauges={"open_groups": 60.0}))
    assert view.gauge("learner", "open_groups") == 20.0, "a late word of the old one changes nothing"


def test_tokens_per_second_are_those_between_two_heartbeats() -> None:
    view = RunView()
    view.add(event("rollout-a", at_s=10.0, gauges={"tokens_generated": 100.0}))
    assert view.tokens_per_s == 0.0
    view.add(event("rollout-a", at_s=12.0, gauges={"tokens_generated": 500.0}))
    assert view.tokens_per_s == 200.0


def test_drops_and_lag_are_summed_over_their_labels() -> None:
    view = RunView()
    view.add(event("learner-a", gauges={"members_dropped{reason=stale}": 16.0, "members_dropped{reason=x}": 1.0}))
    view.add(event("scheduler-a", gauges={"lag_records{group=g,topic=s}": 7.0, "lag_records{group=h,topic=x}": 3.0}))
    assert view.dropped == 17.0
    assert view.lag_records == 10.0


def test_a_stage_that_stopped_is_gone() -> None:
    view = RunView()
    view.add(event("reward-a"))
    view.add(event("reward-a", kind="notice", name="stopped"))
    view.add(event("reward-a", kind="phase_ended", name="scoring"))
    assert view.processes == {}


def test_ranks_of_a_learner_do_not_succeed_each_other() -> None:
    view = RunView()
    for instance, groups in (("learner.0-a", 60.0), ("learner.1-b", 0.0)):
        view.add(event(instance, gauges={"open_groups": groups}))
    assert set(view.processes) == {"learner.0-a", "learner.1-b"}
    view.add(event("learner.0-c", gauges={"open_groups": 7.0}))
    assert set(view.processes) == {"learner.0-c", "learner.1-b"}
    assert view.gauge("learner", "open_groups") == 7.0
