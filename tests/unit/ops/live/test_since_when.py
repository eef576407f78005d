"""What a verdict says besides its kind: since when, that it is of a start, what goes lost, and how it was before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.live.held import Held
from ops.live.ids import Ids
from ops.live.measures import measures_of
from ops.live.picture import HeldPicture, LatelyPicture, RunPicture, StepsPicture, VersionPicture
from ops.live.steps import Steps
from ops.live.verdict import judge
from ops.live.versions import Versions, versions_behind
from schemas.reasons import Result
from schemas.records import LineageStarted, MemberOutcome, Outcome, StageEvent, Version
from tests.unit.ops.live.pictures import NOW_MS, learner, picture, process, prompts, reward, rollout, scheduler

IDLE = {"generating": 0.1, "waiting_for_prompts": 0.9}
LATE = {"generating": 0.2, "waiting_for_weights": 0.4, "waiting_for_prompts": 0.4}


def step(number: float, *, samples: float = 100, instance: str = "learner-h-1-aaaaaa") -> StageEvent:
    return StageEvent(
        run="r",
        stage="learner",
        instance=instance,
        kind="notice",
        name="step",
        seq=int(number),
        unix_ms=0,
        monotonic_s=0.0,
        version=None,
        gauges={"step": number, "num_samples": samples},
        details={},
    )


def steps_at(*seconds: float, samples: float = 100) -> Steps:
    found = Steps()
    for number, at_s in enumerate(seconds, start=1):
        found.add(step(number, samples=samples), at_ms=round(at_s * 1000))
    return found


def test_rates_of_steps_are_over_the_same_last_steps_not_one() -> None:
    seen = steps_at(0, 2, 2.1, 6, 8).picture(8_000)  # one step took 0.1 s
    assert (seen.num, seen.per_s, seen.trained_per_s, seen.step_s) == (4, 0.5, 50.0, 2.0)


def test_old_steps_leave_the_rates_and_stay_in_the_best() -> None:
    fast, slow = range(20), range(21, 100, 3)
    seen = steps_at(*fast, *slow).picture(99_000)
    assert (seen.step_s, seen.best_step_s) == (3.0, 1.0)
    assert seen.trained_per_s == pytest.approx(100 / 3)
    assert seen.best_trained_per_s == pytest.approx(100)


def test_the_way_of_a_new_learner_to_its_first_step_is_no_step() -> None:
    steps = steps_at(0, 1, 2)
    steps.add(step(4, instance="learner-h-2-bbbbbb"), at_ms=60_000)
    assert steps.picture(60_000).num == 0
    assert steps.first_ms == 60_000
    steps.add(step(5, instance="learner-h-2-bbbbbb"), at_ms=61_000)
    assert steps.picture(61_000).step_s == 1.0


def test_a_step_that_is_overdue_lowers_the_rate() -> None:
    assert steps_at(0, 1, 2, 3, 4).picture(20_000).per_s == pytest.approx(0.2)


def test_a_verdict_holds_through_a_flicker_and_not_through_a_change() -> None:
    held = Held()
    looks = [("weights", 0), ("weights", 4), ("credit", 6), ("weights", 8), ("weights", 30)]
    assert [held.look(kind, at_ms=at_s * 1000).since_ms for kind, at_s in looks][-2:] == [0, 0]  # type: ignore[arg-type]
    assert held.look("credit", at_ms=40_000).since_ms == 40_000
    assert held.look("weights", at_ms=50_000).since_ms == 50_000


def test_since_when_is_said_of_the_same_kind_only() -> None:
    seen = picture(learner(0.01, ready=80), rollout(IDLE))
    assert judge(replace(seen, held=HeldPicture(kind="learner", since_ms=7))).since_ms == 7
    assert judge(replace(seen, held=HeldPicture(kind="reward", since_ms=7))).since_ms is None


def test_a_verdict_on_a_start_is_provisional() -> None:
    verdict = judge(replace(picture(), is_settled=False))
    assert verdict.is_provisional
    assert verdict.evidence[0].startswith("provisional: ")
    assert not judge(picture()).is_provisional


def slow_link() -> RunPicture:
    lag = replace(scheduler(), gauges={"publish_lag_versions": 2.0})
    seen = picture(learner(0.6), rollout(LATE, behind=3), prompts(), lag, serve_s=2.6)
    crew = tuple(
        replace(each, gauges={**each.gauges, "credit_groups": 32.0}) if each.stage == "prompts" else each
        for each in seen.processes
    )
    return replace(seen, processes=crew, lately=LatelyPicture(trained=902, lost={"stale": 98}))


def test_late_weights_explain_the_credit_and_the_waiting_for_prompts() -> None:
    verdict = judge(slow_link())
    assert verdict.kind == "weights"
    assert "engines are up to 3 versions behind" in verdict.text
    assert "as groups are begun up to 2 behind, only 32 groups may be open, not 96" in verdict.text
    assert "rollouts wait 40% for weights and 40% for prompts, the learner waits 60%" in verdict.text


def test_the_share_that_goes_lost_lately_is_in_the_verdict_when_it_is_large() -> None:
    assert judge(slow_link()).text.endswith("; 9.8% of samples are dropped as stale")
    few = replace(slow_link(), lately=LatelyPicture(trained=990, lost={"stale": 10}))
    assert "dropped as" not in judge(few).text


def test_the_rate_of_a_fetch_is_that_of_the_bytes_that_came() -> None:
    """Engines of one host share what was fetched: the second one's time goes with no bytes."""
    version = VersionPicture(
        version=Version(lineage=1, step=40),
        published_ms=NOW_MS - 3_000,
        num_bytes=502_000,
        encoding="delta",
        fetched_s={"rollout-host-1-aaaaaa": 2.4, "rollout-host-2-aaaaaa": 0.1},
        fetched_bytes={"rollout-host-1-aaaaaa": 502_000, "rollout-host-2-aaaaaa": 502_000},
    )
    crew = [process("rollout", LATE, number=number) for number in (1, 2)]
    seen = replace(picture(*crew, learner(0.6)), versions=(version,))
    assert measures_of(seen).fetch_bytes_s == pytest.approx(502_000 / 2.4)
    assert "(a version is 502 kB, a fetch takes 2.4 s at 209 kB/s)" in judge(seen).advice


def test_engines_are_behind_the_version_that_the_same_picture_shows() -> None:
    seen = picture(replace(rollout(behind=3), gauges={"versions_behind": 0.0}))
    assert versions_behind(seen.processes, seen.versions) == 3
    assert measures_of(seen).versions_behind == 3
    assert versions_behind(seen.processes, ()) is None


def test_a_swap_over_several_versions_fetched_what_all_of_them_changed() -> None:
    versions = Versions()
    for number, size in ((1, 100), (2, 20), (3, 30)):
        versions._way(Version(lineage=1, step=number)).num_bytes = size
    event = replace(
        step(0, instance="rollout-h-1-aaaaaa"),
        stage="rollout",
        name="swapped",
        version=Version(lineage=1, step=3),
        gauges={"fetch_s": 2.0, "num_deltas": 2.0},
    )
    versions.add_event(event, at_ms=5)
    assert versions.pictures()[-1].fetched_bytes == {"rollout-h-1-aaaaaa": 50}


def test_what_was_best_in_this_run_is_said() -> None:
    steps = StepsPicture(num=8, per_s=0.26, step_s=3.84, trained_per_s=133, best_trained_per_s=330, best_step_s=1.5)
    slow = judge(replace(picture(learner(0.01, ready=80), rollout(IDLE)), steps=steps))
    assert "a step takes 3.8 s, 1.5 s at its best" in slow.text
    assert "trained: 133 samples/s, 330/s at its best" in slow.evidence
    scorer = replace(reward(1.0, scored_per_s=40), best_scored_per_s=330.0)
    seen = picture(learner(0.9), scorer, rollout(IDLE, in_flight=2), lag_records=1_300)
    assert "reward sum scores 40/s (330/s at its best)" in judge(seen).text


def test_a_run_whose_processes_said_that_they_stopped_is_stopped() -> None:
    seen = picture()
    ended = tuple(replace(each, standing="stopped", ended="SIGTERM") for each in seen.processes)
    verdict = judge(replace(seen, processes=ended))
    assert verdict.kind == "stopped"
    assert verdict.text == "all processes stopped (SIGTERM), at step 40; the run is not sealed"
    killed = (replace(ended[0], standing="not heard"), *ended[1:])
    assert judge(replace(seen, processes=killed)).kind == "nobody"


def test_what_went_lost_lately_is_of_the_last_minute() -> None:
    ids = Ids()
    ids.add(LineageStarted(run="r", lineage=1, parent=0, branch_step=0, seq=0, holder="h", started_unix_ms=0))
    for number, at_s in enumerate((0, 100, 110)):
        results = (Result.DROPPED, Result.TRAINED) if at_s else (Result.DROPPED, Result.DROPPED)
        members = tuple(
            MemberOutcome(member=at, result=result, reason="stale: 3" if result == Result.DROPPED else None)
            for at, result in enumerate(results)
        )
        ids.add(_outcome(number, members=members, at_s=at_s))
    assert ids.lately() == LatelyPicture(trained=2, lost={"stale": 2})
    assert ids.reasons() == {"stale": 4}


def _outcome(group: int, *, members: tuple[MemberOutcome, ...], at_s: int) -> Outcome:
    return Outcome(
        run="r",
        group=group,
        lineage=1,
        step=1,
        seq=group + 1,
        result=members[-1].result,
        members=members,
        closed_unix_ms=at_s * 1000,
    )
