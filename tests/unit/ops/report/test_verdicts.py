"""What the verdict says of a run while it goes on is what the report says of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ops.report import verdicts
from ops.report.verdicts import Verdicts
from schemas.records import StageEvent
from tests.unit.ops.report.made_run import START_MS, settings

STAGES = {"prompts": "waiting_for_credit", "rollout": "generating", "learner": "waiting_for_data"}


def event(stage: str, kind: str, name: str, *, at_s: float, gauges: Mapping[str, float] | None = None) -> StageEvent:
    return StageEvent(
        run="r",
        stage=stage,
        instance=f"{stage}-host-1-aaaaaa",
        kind=kind,
        name=name,
        seq=round(at_s * 1000),
        gauges=gauges if gauges is not None else {},
        monotonic_s=at_s,
        unix_ms=START_MS + round(at_s * 1000),
    )


def slow_rollouts(length_s: int, *, began_s: int = 0) -> Iterator[StageEvent]:
    """A learner that waits nine tenths of its time for rollouts that generate all of theirs."""
    for stage, phase in STAGES.items():
        yield event(stage, "phase_began", phase, at_s=began_s)
    for second in range(began_s + 1, began_s + length_s):
        yield event("learner", "phase_began", "forward_backward", at_s=second + 0.1)
        yield event("learner", "phase_began", "waiting_for_data", at_s=second + 0.2)
        for stage in STAGES:
            beat = {"tokens_generated": 100.0 * second} if stage == "rollout" else {}
            yield event(stage, "heartbeat", "heartbeat", at_s=second + 0.5, gauges=beat)


def test_the_verdict_over_the_run_names_who_starved(tmp_path: Path) -> None:
    folded = Verdicts(settings("r", folder=tmp_path))
    for each in slow_rollouts(60):
        folded.add(each)
    first, *_ = folded.said()
    assert first.last.kind == "rollout"
    assert sum(each.share for each in folded.said()) == pytest.approx(1.0)
    assert first.share > 0.9
    assert first.last.advice
    assert [value for value in folded.series()["tokens_per_s"].values if value][-1] == pytest.approx(100.0)


def test_looks_are_bounded_and_silence_counts_for_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_LOOKS", 4)
    folded = Verdicts(settings("r", folder=tmp_path))
    for each in (*slow_rollouts(60), *slow_rollouts(30, began_s=100_000)):
        folded.add(each)
    assert folded._num_looks <= 4
    assert sum(folded._spent_ms.values()) < 150_000


def test_a_run_of_which_nothing_was_heard_has_no_verdict(tmp_path: Path) -> None:
    assert Verdicts(settings("r", folder=tmp_path)).said() == ()


def test_a_stage_that_is_heard_late_at_the_start_was_not_missing(tmp_path: Path) -> None:
    folded = Verdicts(settings("r", folder=tmp_path))
    for second in range(40):
        folded.add(event("rollout", "heartbeat", "heartbeat", at_s=second))
    assert [each.last.kind for each in folded.said()] == ["missing"], "as long as nobody knows that it comes"
    for each in slow_rollouts(60, began_s=40):
        folded.add(each)
    assert [each.last.kind for each in folded.said()] == ["rollout"]
